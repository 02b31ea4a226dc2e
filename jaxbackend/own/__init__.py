"""A user's own flax model, linen or nnx."""

from compare.interface import Refused
from compare.pairing import names
from compare.workloads import ModelSpec
from jaxbackend.functional import Functional
from jaxbackend.own.adopted import Adopted
from jaxbackend.own.building import build
from jaxbackend.precision import Policy


def adopt(spec: ModelSpec, policy: Policy) -> Functional:
    """Return the JAX model of a pair that has been matched, under its neutral names.

    Raises:
        Refused: the pair has no table of names; the model cannot be built or run, or does not compute in the policy's
            dtypes.
    """
    if "names" not in spec.arguments:
        raise Refused("this pair has not been matched: its layers have no common names yet")
    return Adopted(build(spec, policy), names.from_json(spec.arguments["names"]["jax"]), spec, policy)
