"""A user's model, linen or nnx: its variables and layers, and how to run it."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from flax import errors, linen, nnx, traverse_util

from compare.base.errors import take_first_line
from compare.base.interface import Refused
from compare.base.task import Input, unpack_inputs
from compare.worker import factories
from jaxbackend import roles
from jaxbackend.activations import Around
from jaxbackend.precision import Policy

_T = TypeVar("_T")
_LEAST_EPSILON = 1e-12  # linen's own

DROPPED_PATHS = ("DropPath", "StochasticDepth")
"""Classes of stochastic depth as people write them; flax has none."""

DRAWS = (
    "the model draws random numbers in training, which two frameworks cannot share; allowed: flax's own Dropout, "
    "rate 0 by an argument of the factory, or the numbers as an input of the model"
)
"""The reason for refusing a model that draws random numbers."""


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        module: its module, unbound if it is linen's.
        inputs: its inputs after the first one.
        options: its keyword arguments.
        result: its result.
    """

    module: Any
    inputs: tuple[Any, ...]
    options: Mapping[str, Any]
    result: Any


class Arguments:
    """The arguments of a model's call: one image, or several inputs that lie in one row for each example.

    Inputs whose names the call has are passed by name if it has all of them. Others are passed by place.
    """

    def __init__(self, model: Any, inputs: Sequence[Input]) -> None:
        named = inspect.signature(type(model).__call__).parameters
        self._inputs = inputs
        self._by_name = bool(inputs) and all(each.name in named for each in inputs)

    def __call__(self, images: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments by place and by name. `images` are images, a row, or a tuple of inputs."""
        if not self._inputs:
            return (images,), {}
        values = images if isinstance(images, tuple) else unpack_inputs(self._inputs, images, _convert)
        if self._by_name:
            return (), {each.name: value for each, value in zip(self._inputs, values, strict=True)}
        return tuple(values), {}


def describe_inputs(inputs: Sequence[Input], image: Sequence[int], batch_size: int, dtype: Any) -> Any:
    """Return shape and dtype of images, or of each of several inputs in a tuple."""
    if not inputs:
        return jax.ShapeDtypeStruct((batch_size, *image), dtype)
    dtypes = [dtype if each.below is None else jnp.int32 for each in inputs]
    shapes = zip(inputs, dtypes, strict=True)
    return tuple(jax.ShapeDtypeStruct((batch_size, *each.shape), kind) for each, kind in shapes)


def _convert(each: Input, values: jax.Array) -> jax.Array:
    return values if each.below is None else jnp.round(values).astype(jnp.int32)


class UserModel(Protocol):
    """A user's model.

    Attributes:
        framework: `flax.linen` or `flax.nnx`.
        parameters, buffers: its variables, arrays in nested dicts.
        layers: paths of the modules that hold variables.
        dropout: paths of its dropout layers, which are switched off.
        axes: names of the mapped axes that it reduces over (`axis_name` of a batch norm).
        derived: paths of modules whose call calls that of their base class. Only that is the layer.
    """

    framework: str
    parameters: Any
    buffers: Any
    layers: tuple[str, ...]
    dropout: tuple[str, ...]
    axes: tuple[str, ...]
    derived: set[str]

    def own_name(self, path: tuple[Any, ...], is_parameter: bool) -> str:
        """Return the name of a variable as in `compare.base.trace.Variable`."""
        ...

    def run(self, parameters: Any, buffers: Any, images: Any, *, training: bool, around: Around) -> tuple[Any, Any]:
        """Return the model's result and the new buffers. `around` replaces each call of a layer."""
        ...

    def unbind(self, module: Any) -> Any:
        """Return a module that `around` got in a form that outlives the pass."""
        ...

    def run_layer(self, path: str, call: Call, parameters: Any, buffers: Any, inputs: Any, *, training: bool) -> Any:
        """Return one layer's result, computed with its own part of the variables."""
        ...


def find_rate(module: Any) -> str | None:
    """Return the attribute with the rate of a dropout module, or None if it has none."""
    names = ("rate", "drop_prob", "drop_rate", "p")
    return next((name for name in names if isinstance(getattr(module, name, None), (int, float))), None)


def describe_dropout(path: str, module: Any) -> str:
    """Return the path of a dropout module and its rate."""
    name = find_rate(module)
    return path if name is None else f"{path} with p={getattr(module, name):g}"


def switch_off_attention(path: str, module: Any) -> str | None:
    """Set the dropout rate of flax's own attention to 0. Return its path with the rate, or None if it has none."""
    if not isinstance(module, (linen.MultiHeadDotProductAttention, nnx.MultiHeadAttention)) or not module.dropout_rate:
        return None
    described = f"{path} with p={module.dropout_rate:g}"
    object.__setattr__(module, "dropout_rate", 0.0)
    return described


def guard(action: Callable[[], _T], reference: str) -> _T:
    """Run the user's model by `action` and return its result.

    Raises:
        Refused: the model raised or exited. The reason names the factory.
    """
    try:
        return action()
    except Refused as error:
        raise Refused(f"{reference}: {error}") from error
    except errors.InvalidRngError as error:
        raise Refused(f"{reference}: {DRAWS}") from error
    except errors.ModifyScopeVariableError as error:
        raise Refused(
            f"{reference}: the model changes a variable in training that is no statistic: {take_first_line(error)}; "
            "allowed: to change the collection batch_stats"
        ) from error
    except (Exception, SystemExit) as error:
        raise Refused(
            f"{reference}: the model's forward pass raised {type(error).__name__}: {take_first_line(error)}"
            f"{factories.find_raise(error)}{factories.suggest_inputs(error)}"
        ) from error


def call_plainly(_path: str, _module: Any, call: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call a layer as if nothing stood around it (`jaxbackend.activations.Around`)."""
    return call(*inputs, **options)


def names_axis(module: Any) -> bool:
    """Tell whether a module has an attribute with the name of a mapped axis, as flax's batch norm has."""
    return any("axis_name" in name and value is not None for name, value in vars(module).items())


def find_axes(run: Callable[[tuple[str, ...]], Any]) -> tuple[str, ...]:
    """Return the names of the mapped axes that a model needs. `run` traces it with those found so far."""
    axes: tuple[str, ...] = ()
    while True:
        try:
            run(axes)
        except NameError as error:
            missing = re.search(r"unbound axis name:? (\w+)", str(error))
            if missing is None or missing[1] in axes:
                raise
            axes = (*axes, missing[1])
        else:
            return axes


def bind_axes(function: Callable[..., _T], axes: Sequence[str]) -> Callable[..., _T]:
    """Return the function with each axis bound to one device, over which a mean or sum changes nothing."""
    for name in axes:
        function = jax.vmap(function, in_axes=None, out_axes=None, axis_name=name, axis_size=1)
    return function


def check_supported(path: str, module: Any) -> None:
    """Refuse a module that samestep cannot match with another framework's.

    Raises:
        Refused: for weight norm, spectral norm and recurrent layers, by their names.
    """
    kind = type(module).__name__
    if kind == "SpectralNorm":
        raise Refused(
            f"{path} is a flax SpectralNorm, whose iteration starts from the other vector than torch's, so the two "
            "never compute the same; allowed: the layer itself, or linen's WeightNorm"
        )
    if kind == "WeightNorm" and not is_weight_norm(module):
        raise Refused(
            f"{path} is a flax WeightNorm, and samestep matches linen's with a scale over the outputs of a kernel; "
            "allowed: nn.WeightNorm(layer), without other arguments than epsilon"
        )
    if isinstance(module, (linen.RNNCellBase, nnx.RNNCellBase)):
        raise Refused(
            f"{path} is a flax {kind}, and samestep matches no recurrent layers; allowed: models without them"
        )


def is_weight_norm(module: Any) -> bool:
    """Tell whether a module is linen's weight norm over the outputs of a kernel, with a scale, as torch's is."""
    if not isinstance(module, linen.WeightNorm) or not module.use_scale:
        return False
    is_over_outputs = module.feature_axes in (-1, (-1,))
    kinds = (linen.Conv, linen.Dense)
    return (
        is_over_outputs and set(module.variable_filter or ()) == {"kernel"} and isinstance(module.layer_instance, kinds)
    )


EXACT_WEIGHT_NORM = (
    "linen's WeightNorm adds 1e-12 under its root and torch's adds nothing: the certificate leaves it out"
)


def make_weight_norm_exact(module: Any, policy: Policy) -> None:
    """Leave out the epsilon of linen's weight norm while float64 is the reference, as torch's has none."""
    if policy.compute_dtype == jnp.float64 and is_weight_norm(module) and module.epsilon <= _LEAST_EPSILON:
        object.__setattr__(module, "epsilon", 0.0)  # a bound module belongs to this pass


def spell_path(path: tuple[Any, ...]) -> str:
    """Return a path joined by slashes."""
    return "/".join(map(str, path)) or roles.ROOT


def find_layers(*states: Any) -> tuple[str, ...]:
    """Return the paths of the modules that hold variables, in the states' order."""
    return tuple(dict.fromkeys(spell_path(path[:-1]) for state in states for path in traverse_util.flatten_dict(state)))
