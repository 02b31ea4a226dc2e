"""A user's own model, flax's linen or nnx: made by the user's factory, checked, and named by its pair's table."""

from dataclasses import dataclass

import jax
import numpy as np
from flax import linen, nnx, traverse_util

from compare.base import names
from compare.base.interface import Refused
from compare.base.workloads import ModelSpec
from compare.worker import factories
from jaxbackend.only.adapter import Adopted
from jaxbackend.only.functional import Functional
from jaxbackend.only.linen_model import LinenModel
from jaxbackend.only.nnx_model import NnxModel
from jaxbackend.only.user_model import Own, guarded, spelt
from jaxbackend.precision import Policy

_ALLOWED = "allowed: a factory that returns a flax.linen or flax.nnx module"


@dataclass(frozen=True)
class Built:
    """What `build` returns; `reference` is the factory's, the rest as in `compare.worker.factories.FactoryResult`."""

    model: Own
    reference: str
    source_sha256: str
    notes: tuple[str, ...]


def build(spec: ModelSpec, policy: Policy, initialised: bool = False) -> Built:
    """Call the factory of a pair's JAX side, which gets the policy's dtypes where it names them.

    A linen model's variables have their initial values only if `initialised`: that compiles another program.

    Raises:
        Refused: as `compare.worker.factories.make`; what is no flax model; one that cannot be run on the images.
    """
    reference = spec.arguments["jax"]
    offered = {"rngs": nnx.Rngs(0), "dtype": policy.compute_dtype, "param_dtype": policy.parameter_dtype}
    made = factories.make(reference, spec.arguments["arguments"]["jax"], offered=offered, other="torch")
    images = jax.ShapeDtypeStruct((2, *spec.image), policy.parameter_dtype)
    if isinstance(made.model, type):
        raise Refused(f"{reference} returns the class {made.model.__name__}, not a model made of it; {_ALLOWED}")
    if isinstance(made.model, linen.Module):
        model: Own = guarded(lambda: LinenModel(made.model, images, initialised), reference)
    elif isinstance(made.model, nnx.Module):
        model = NnxModel(made.model)
    else:
        kind = f"{type(made.model).__module__}.{type(made.model).__qualname__}"
        raise Refused(f"{reference} returns a {kind}; {_ALLOWED}")
    _finite(model, reference)
    return Built(model, reference, made.source_sha256, made.notes)


def adopt(spec: ModelSpec, policy: Policy, initialised: bool = False) -> Functional:
    """Return the JAX model of a pair that has been matched, under its neutral names; `initialised` as for `build`.

    Raises:
        Refused: the pair has no table of names; the model cannot be built or run, or does not compute in the policy's
            dtypes.
    """
    if "names" not in spec.arguments:
        raise Refused("this pair has not been matched: its layers have no common names yet")
    table, built = names.from_json(spec.arguments["names"]["jax"]), build(spec, policy, initialised)
    return Adopted(built.model, built.reference, table, spec.image, policy)


def _finite(model: Own, reference: str) -> None:
    for state in (model.parameters, model.buffers):
        for path, array in traverse_util.flatten_dict(state).items():
            if not np.isfinite(jax.device_get(array)).all():  # in NumPy: nothing to compile a shape
                raise Refused(f"{reference}: {spelt(path)} contains NaN or infinity; allowed: finite weights")
