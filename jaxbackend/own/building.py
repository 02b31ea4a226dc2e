"""A user's model from its factory."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen, nnx

from compare import factories
from compare.interface import Refused
from compare.workloads import ModelSpec
from jaxbackend.own.linenmodel import LinenModel
from jaxbackend.own.model import Own, guarded, spelt
from jaxbackend.own.nnxmodel import NnxModel
from jaxbackend.precision import Policy


@dataclass(frozen=True)
class Built:
    """What `build` returns; `reference` is the factory's, the rest as in `compare.factories.Made`."""

    model: Own
    reference: str
    source_sha256: str
    notes: tuple[str, ...]


def build(spec: ModelSpec, policy: Policy) -> Built:
    """Call the factory of a pair's JAX side, which gets the policy's dtypes where it names them.

    Raises:
        Refused: as `compare.factories.make`; for what is no flax model; for one that cannot be run on the images.
    """
    reference = spec.arguments["jax"]
    offered = {"rngs": nnx.Rngs(0), "dtype": policy.compute_dtype, "param_dtype": policy.parameter_dtype}
    made = factories.make(reference, spec.arguments["arguments"]["jax"], offered=offered, other="torch")
    images = jax.ShapeDtypeStruct((2, *spec.image), policy.parameter_dtype)
    if isinstance(made.model, linen.Module):
        model: Own = guarded(lambda: LinenModel(made.model, images), reference)
    elif isinstance(made.model, nnx.Module):
        model = NnxModel(made.model)
    else:
        kind = f"{type(made.model).__module__}.{type(made.model).__qualname__}"
        raise Refused(f"{reference}: the factory returned a {kind}; allowed: a flax.linen or flax.nnx module")
    _finite(model, reference)
    return Built(model, reference, made.source_sha256, made.notes)


def _finite(model: Own, reference: str) -> None:
    for state in (model.parameters, model.buffers):
        for path, variable in nnx.to_flat_state(state):
            if not bool(jnp.isfinite(variable.get_value()).all()):
                raise Refused(f"{reference}: {spelt(path)} holds NaN or infinity; allowed: finite weights")
