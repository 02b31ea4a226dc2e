"""Traces written down by hand: a model as a list of layers, said once and told in either framework's names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compare.base.trace import IMAGES, Layer, Trace, Variable

_TORCH = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
_FOUR = ("scale", "bias", "mean", "var")


@dataclass(frozen=True)
class Said:
    """One layer: its name (dotted), role, the shapes of its variables by role, and the names that it comes after."""

    name: str
    role: str
    shapes: Mapping[str, tuple[int, ...]]
    after: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    between: tuple[str, ...] = ()
    output: tuple[int, ...] = (2, 4)


def convolution(
    name: str, shape: tuple[int, ...], after: Sequence[str], *, bias: bool = False, **settings: Any
) -> Said:
    """A convolution with an HWIO kernel."""
    shapes = {"kernel": shape} | ({"bias": shape[-1:]} if bias else {})
    return Said(name, "convolution", shapes, tuple(after), settings)


def dense(name: str, shape: tuple[int, int], after: Sequence[str], *, bias: bool = True) -> Said:
    """A dense layer with a kernel [inputs, outputs]."""
    return Said(name, "dense", {"kernel": shape} | ({"bias": shape[1:]} if bias else {}), tuple(after))


def batch_norm(name: str, features: int, after: Sequence[str], **settings: Any) -> Said:
    """A batch norm with all four of its variables."""
    return Said(name, "batch-norm", dict.fromkeys(_FOUR, (features,)), tuple(after), settings)


def parameters(name: str, after: Sequence[str], **shapes: tuple[int, ...]) -> Said:
    """A module's own parameters, by their own names."""
    return Said(name, "parameters", shapes, tuple(after))


def again(name: str, role: str, after: Sequence[str]) -> Said:
    """A further call, `name` ending in `#2`, `#3`, ..."""
    return Said(name, role, {}, tuple(after))


def torch(*layers: Said, **changes: Any) -> Trace:
    """Return a torch trace: names as they are."""
    return _trace("torch", layers, lambda name: name, _torch_variable, changes)


def jax(*layers: Said, **changes: Any) -> Trace:
    """Return a linen trace: names with slashes, `_0` after each part."""
    return _trace("flax.linen", layers, flax_path, _flax_variable, changes)


def flax_path(name: str) -> str:
    """Return the flax path of a name."""
    first, mark, call = name.partition("#")
    return "/".join(f"{part.capitalize()}_0" for part in first.split(".") if part) + mark + call


def both(*layers: Said) -> tuple[Trace, Trace]:
    """Return the same model in both."""
    return torch(*layers), jax(*layers)


def renamed(layer: Said, **changes: Any) -> Said:
    """Return a layer with other fields."""
    return replace(layer, **changes)


def _torch_variable(said: Said, role: str) -> str:
    prefix = f"{said.name}." if said.name else ""
    return prefix + (role if said.role == "parameters" else _TORCH.get(role, role))


def _flax_variable(said: Said, role: str) -> str:
    collection = "batch_stats" if role in ("mean", "var") else "params"
    return "/".join(each for each in (collection, flax_path(said.name), role) if each)


def _trace(framework: str, layers: Sequence[Said], path: Any, variable: Any, changes: Mapping[str, Any]) -> Trace:
    def path_all(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(path(name) if name else IMAGES for name in names)

    made = [
        Layer(
            path=path(said.name),
            role=said.role,
            variables=tuple(_variable(said, role, shape, variable(said, role)) for role, shape in said.shapes.items()),
            settings=said.settings,
            input=(2, 4),
            output=said.output,
            after=path_all(said.after),
            between=said.between,
            last=path_all(said.after) if said.role == "parameters" else (),
            until_end=(*said.between, "multiply") if said.role == "parameters" else (),
        )
        for said in layers
    ]
    trace = Trace(framework, tuple(made), (2, 10), (made[-1].path,), (), (), (), "0" * 64)
    return replace(trace, **changes)


def _variable(said: Said, role: str, shape: tuple[int, ...], own: str) -> Variable:
    kind = ("gamma" if sum(each > 1 for each in shape) <= 1 else "free") if said.role == "parameters" else role
    return Variable(own, kind, shape, role not in ("mean", "var"))
