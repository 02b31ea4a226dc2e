"""A user's own model: made by the user's factory, checked, and named by the table that its pair was matched to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils import parametrize

from compare.base import names
from compare.base.interface import Refused, first_line
from compare.base.names import Names
from compare.base.workloads import ModelSpec
from compare.worker import factories
from torchbackend import roles
from torchbackend.precision import Policy

# Classes of stochastic depth as people copy them (timm, torchvision), and the attribute that holds their rate.
_DROPPED_PATHS = {"DropPath": "drop_prob", "StochasticDepth": "p"}


@dataclass(frozen=True)
class Built:
    """What a factory returned, its dropout switched off.

    Attributes:
        model: float parameters of whatever dtype its author chose, in training mode.
        dropout: paths of the dropout layers.
        source_sha256: of the file that defines the factory.
        notes: what a reader should know of the call.
    """

    model: nn.Module
    dropout: tuple[str, ...]
    source_sha256: str
    notes: tuple[str, ...]


def build(spec: ModelSpec) -> Built:
    """Return the model of a pair's torch factory, on the host.

    Raises:
        Refused: whatever `compare.worker.factories.make` refuses; the factory returns no torch.nn.Module, or one
            that is compiled, scripted or wrapped, has lazy or parametrized layers, or weights that are not finite.
    """
    reference, arguments = spec.arguments["torch"], spec.arguments["arguments"]["torch"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # as flax's models get key 0: the same factory gives the same initial weights again
        made = factories.make(reference, arguments, offered={}, other="jax")
    _check(made.model, reference)
    model: nn.Module = made.model
    return Built(model.train(), _without_dropout(model), made.source_sha256, made.notes)


def adopt(spec: ModelSpec, policy: Policy) -> tuple[nn.Module, Names]:
    """Return a pair's torch model in the parameters' dtype, and the table of what its variables and layers are called.

    Raises:
        Refused: as `build`; the pair is yet to be matched; the table names what the model has not.
    """
    reference = spec.arguments["torch"]
    if "names" not in spec.arguments:
        raise Refused(f"{reference}: the pair is yet to be matched; a session needs the table of its names")
    table, model = names.from_json(spec.arguments["names"]["torch"]), build(spec).model
    known = {*dict(model.named_parameters(remove_duplicate=False)), *dict(model.named_buffers())}
    missing = [each.own for each in table.variables if each.own not in known]
    places = {roles.ROOT, *dict(model.named_modules())}
    missing += [own for own in table.layers if own.partition("#")[0] not in places]
    if missing:
        raise Refused(f"{reference}: the model has no {missing[0]!r}, which the pair's table names; match it again")
    return model.to(policy.parameter_dtype), table


def refuse_views(spec: ModelSpec, evaluate: Callable[[], object]) -> None:
    """Refuse a model that cannot take images in the memory order of channels-last: one that calls `view` on them."""
    try:
        evaluate()
    except RuntimeError as error:
        raise Refused(f"{spec.arguments['torch']} cannot take channels-last: {first_line(error)}") from error


def refuse_other_dtypes(outputs: Mapping[str, torch.Tensor], policy: Policy) -> None:
    """Refuse a layer that turns float64 into something less, which no gate could judge."""
    for name, output in outputs.items():
        if policy.compute_dtype == torch.float64 != output.dtype and output.is_floating_point():
            given = str(output.dtype).removeprefix("torch.")
            raise Refused(f"{name} is {given} where float64 is asked; allowed: models that keep their dtype")


def _check(model: object, reference: str) -> None:
    allowed = "allowed: a factory that returns a torch.nn.Module"
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise Refused(f"{reference} returns the class {model.__name__}, not a model made of it; {allowed}")
    if not isinstance(model, nn.Module):
        raise Refused(f"{reference} returns a {type(model).__module__}.{type(model).__qualname__}; {allowed}")
    wrapped = isinstance(model, (torch.jit.ScriptModule, nn.DataParallel, nn.parallel.DistributedDataParallel))
    if wrapped or hasattr(model, "_orig_mod"):  # what torch.compile returns
        raise Refused(
            f"{reference} returns a {type(model).__name__}; allowed: the model as it is, neither compiled nor wrapped "
            "(samestep compiles it where the tuning says so)"
        )
    for path, module in model.named_modules():
        if parametrize.is_parametrized(module):
            raise Refused(
                f"{reference}: the parameters of {path!r} are computed from others (torch.nn.utils.parametrize); "
                "remove the parametrization in the factory (torch.nn.utils.parametrize.remove_parametrizations)"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise Refused(f"{reference}: {name!r} is lazy, without a shape; call the model once in the factory")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise Refused(f"{reference}: {name!r} contains NaN or infinity; allowed: finite weights")


def _without_dropout(model: nn.Module) -> tuple[str, ...]:
    found: list[str] = []
    for path, module in model.named_modules():
        attribute = "p" if isinstance(module, _DropoutNd) else _DROPPED_PATHS.get(type(module).__name__)
        if attribute is not None and hasattr(module, attribute):
            setattr(module, attribute, 0.0)
            found.append(path)
    return tuple(found)
