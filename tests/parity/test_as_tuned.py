"""Torch: every workload trains the same with the knobs of `tuned` that a CPU has, and without them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from compare.base.interface import Arrays
from compare.base.workloads import Workload
from compare.data import weights
from tests.parity import recorded_graph, small, twins

LAYOUT = "stock+channels-last+fused-optimizer"
STEPS = 9


def trained(workload: Workload, tuning: str, **knobs: Any) -> tuple[Arrays, dict[str, Any]]:
    """Return the state after so many steps, and the effective settings."""
    torch.compiler.reset()
    spec = small.spec(workload, "torch", tuning)
    session = twins.BACKENDS["torch"].open(replace(spec, knobs={**spec.knobs, **knobs}))
    session.assign(weights.randomise(session.signature(), 3))
    state = twins.trained(session, small.batches(workload, 4), STEPS).export()
    return {**state.parameters, **state.buffers, **state.optimizer}, session.settings()


def same(found: Arrays, wanted: Arrays) -> None:
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-10 * (1 + np.abs(array).max()), err_msg=name)


@pytest.mark.parametrize(("name", "side"), small.SIDES.items())
def test_captured_steps(name: str, side: int, monkeypatch: pytest.MonkeyPatch):
    workload = small.small(name, side)
    wanted, _ = trained(workload, "stock")
    recorded_graph.pretend(monkeypatch)
    found, settings = trained(workload, LAYOUT, **{"graph-capture": True, "steps-per-dispatch": 4})
    assert (settings["graph-capture"], settings["steps-per-dispatch"]) == (True, 4)
    same(found, wanted)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "side"), small.SIDES.items())
def test_compiled_steps(name: str, side: int):
    workload = small.small(name, side)
    wanted, _ = trained(workload, "stock")
    found, settings = trained(workload, f"{LAYOUT}+compile")
    assert (settings["compile"], settings["graph-breaks"], settings["channels-last"]) == (True, 0, True)
    same(found, wanted)
