"""Sessions and traces of torch models that tests wrote, without a partner: tables straight from the trace."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import torchbackend.backend
from compare.base import descriptions, trace
from compare.base.interface import RunSpec, Session
from compare.base.names import Crossing, Names
from compare.base.process_group import RankInfo
from compare.base.trace import Trace
from compare.base.workloads import PAIR, ModelSpec, OptimizerSpec, Workload
from compare.data import weights
from compare.settings import tunings
from torchbackend.session import TorchSession

MODELS = Path(__file__).with_name("torch_models.py")
SGD = OptimizerSpec("sgd", learning_rate=0.05, momentum=0.9, nesterov=True)


def model(factory: str, *, file: Path = MODELS, size: int = 8, **arguments: Any) -> ModelSpec:
    return ModelSpec(PAIR, (size, size, 3), 5, {"torch": f"{file}:{factory}", "arguments": {"torch": arguments}})


def traced(spec: ModelSpec, batch_size: int = 3) -> Trace:
    return trace.from_json(torchbackend.backend.BACKEND.trace(spec, batch_size))


def table(found: Trace) -> Names:
    """Return the table of names that are the model's own."""
    variables = [
        Crossing(
            own=each.own,
            name=f"{each.own if each.role in ('gamma', 'free') else layer.path}.{each.role}",
            shape=each.shape,
            is_parameter=each.is_parameter,
            orders=each.orders,
        )
        for layer in found.layers
        for each in layer.variables
    ]
    layouts = {layer.path: (layer.input_layout, layer.output_layout) for layer in found.layers}
    return Names(tuple(variables), {layer.path: layer.path for layer in found.layers}, layouts)


def matched(spec: ModelSpec) -> ModelSpec:
    names = table(traced(spec)).to_json()
    return replace(spec, arguments={**spec.arguments, "names": {"torch": names}})


def session(
    patch: pytest.MonkeyPatch,
    spec: ModelSpec,
    tuning: str = "stock",
    optimizer: OptimizerSpec = SGD,
    place: RankInfo | None = None,
    **changes: Any,
) -> Session:
    """Return a session with randomised weights."""
    workload = Workload("own", "", spec, optimizer, "digits", 4, 1)
    patch.setattr(descriptions, "read_workload", lambda _: workload)
    options: dict[str, Any] = {
        "precision": "float64",
        "device": "cpu",
        "batch_size": 4,
        "seed": 3,
        "epochs": 1,
        "data": "",
    }
    resolved = tunings.resolve("torch", tuning, "cpu", "digits-cnn")
    opened = TorchSession(RunSpec(workload="own", knobs=resolved, **(options | changes)), place)
    known = {name: shape for name, shape in opened.signature().items() if not name.endswith("embedding")}
    values = weights.randomise(known, 3)
    for name, shape in opened.signature().items():
        if name.endswith("embedding"):
            values[name] = weights.randomise({"kernel": shape}, 3)["kernel"]
    opened.assign(values)
    return opened
