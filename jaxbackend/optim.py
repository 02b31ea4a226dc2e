"""Update rules, in torch's conventions."""

from typing import Any

import optax

from compare.interface import Arrays
from compare.workloads import OptimizerSpec
from jaxbackend import layout


def build(spec: OptimizerSpec) -> optax.GradientTransformation:
    """Return the update rule of a workload."""
    if spec.name == "sgd":
        return optax.sgd(spec.learning_rate, momentum=spec.momentum, nesterov=spec.nesterov)
    return optax.adam(spec.learning_rate, b1=spec.betas[0], b2=spec.betas[1], eps=spec.epsilon)


def export(state: Any) -> Arrays:
    """Return the optimizer's moments by `KIND/PARAMETER` in neutral layout."""
    arrays: Arrays = {}
    for kind, attribute in (("momentum", "trace"), ("first_moment", "mu"), ("second_moment", "nu")):
        moments = optax.tree_utils.tree_get(state, attribute)
        if moments is not None:
            arrays |= {f"{kind}/{name}": array for name, array in layout.export(moments).items()}
    return arrays
