"""Sessions of a user's flax model under names made from its own trace, as a match would make them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compare.base import trace, workloads
from compare.base.interface import Arrays, Batch, RunSpec, Session
from compare.base.names import Crossing, Names
from compare.base.trace import Layer, Trace
from compare.base.workloads import ModelSpec, OptimizerSpec, Workload
from compare.data import synthetic, weights
from compare.settings import tunings
from jaxbackend.backend import BACKEND

HERE = "tests/own/flax_models.py"
OPTIMIZER = OptimizerSpec("sgd", learning_rate=0.1, momentum=0.9)


def model(factory: str, image: tuple[int, int, int] = (9, 9, 3), classes: int = 5, **arguments: Any) -> ModelSpec:
    reference = factory if ":" in factory else f"{HERE}:{factory}"
    given = {"jax": arguments, "torch": {}}
    return ModelSpec("pair", image, classes, {"jax": reference, "torch": "", "arguments": given})


def traced(spec: ModelSpec, batch_size: int = 2) -> Trace:
    return trace.from_json(BACKEND.trace(spec, batch_size))


def layers(factory: str, **arguments: Any) -> dict[str, Layer]:
    return {layer.path: layer for layer in traced(model(factory, **arguments)).layers}


def named(spec: ModelSpec) -> ModelSpec:
    """Return the model with neutral names: dotted paths in lower case."""
    found = traced(spec)
    paths = {layer.path: layer.path.lower().replace("/", ".") for layer in found.layers if layer.variables}
    variables = tuple(
        Crossing(
            own=each.own,
            name=f"{paths[layer.path]}.{each.own.rpartition('/')[2] if layer.role == 'parameters' else each.role}",
            shape=each.shape,
            is_parameter=each.is_parameter,
            orders=each.orders,
        )
        for layer in found.layers
        for each in layer.variables
    )
    layouts = {layer.path: (layer.input_layout, layer.output_layout) for layer in found.layers}
    table = Names(variables, paths, layouts).to_json()
    return replace(spec, arguments={**spec.arguments, "names": {"jax": table, "torch": table}})


def opened(
    spec: ModelSpec,
    tuning: str = "stock",
    optimizer: OptimizerSpec = OPTIMIZER,
    **changes: Any,
) -> Session:
    """Return a session of the model, weights randomised."""
    workload = Workload("own", "a user's", spec, optimizer, "synthetic", batch_size=4, epochs=1)
    values: dict[str, Any] = {"precision": "float64", "device": "cpu", "batch_size": 4, "seed": 3, "epochs": 1}
    chosen = tunings.resolve("jax", tuning, "cpu", "own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workloads, "WORKLOADS", {**workloads.WORKLOADS, "own": workload})
        session = BACKEND.open(RunSpec(workload="own", knobs=chosen, data="", **(values | changes)))
    session.assign(randomised(session.signature()))
    return session


def randomised(shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Return `compare.data.weights.randomise`, small numbers where it knows no name."""
    known = {"kernel", "bias", "scale", "mean", "var"}
    drawn = {name: shape for name, shape in shapes.items() if name.rpartition(".")[2] in known}
    values = weights.randomise(drawn, 3)
    generator = np.random.default_rng(5)
    return {name: values.get(name, generator.normal(0, 0.5, shape)) for name, shape in shapes.items()}


def batches(spec: ModelSpec, count: int, size: int = 4) -> list[Batch]:
    drawn, _ = synthetic.make(spec.image, classes=spec.classes, seed=1, train=count * size, test=1)
    parts = [slice(start, start + size) for start in range(0, count * size, size)]
    return [Batch(drawn.images[part], drawn.labels[part]) for part in parts]
