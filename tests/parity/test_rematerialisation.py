"""Rematerialisation: blocks computed twice train as blocks computed once, on both sides, and take less memory."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import jaxbackend.rematerialisation
import torchbackend.only.programs
import torchbackend.rematerialisation
from compare.base import workloads
from compare.base.interface import Arrays, Batch, Refused
from compare.base.workloads import BLOCKS
from compare.data import weights
from tests.parity import recorded_graph, twins
from tests.parity.small import SIDES, batches, opened, small, spec

COUNTS = {
    "cifar-cnn": 4,
    "cifar-resnet18": 2,
    "resnet50": 2,
    "convnext-tiny": 3,
    "vgg16": 2,
    "mobilenet-v2": 2,
    "unet": 5,
}
ON = "stock+rematerialisation"


def steps(session: Any, pool: list[Batch]) -> Arrays:
    """Return the internals of a step on each batch, in execution order, and the state after them."""
    found = {f"{step}/{name}": a for step, batch in enumerate(pool) for name, a in session.inspect(batch).items()}
    state = session.export()
    return found | {f"after/{name}": a for each in (state.buffers, state.optimizer) for name, a in each.items()}


def same(found: Arrays, wanted: Arrays, tolerance: float) -> None:
    recorded = [[name for name in each if "/activation/" in name] for each in (found, wanted)]
    assert recorded[0] == recorded[1]  # each layer once, in execution order
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        scale = np.abs(wanted[name]).max()
        limit = tolerance * max(scale, 1e-3)  # the gradient of a bias before batch norm is zero but for rounding
        np.testing.assert_allclose(array, wanted[name], rtol=0, atol=limit, err_msg=name)


def recomputed_in_jax(session: Any) -> int:
    """Return how many blocks JAX's training program computes twice."""
    with session._policy.scope():
        return jaxbackend.rematerialisation.count_recomputed(session._lowered())


@pytest.fixture
def programs_of_its_own() -> Iterator[None]:
    yield
    torch.compiler.reset()  # programs count towards the limit of recompilations


def test_every_family_with_blocks_is_tried():
    assert {workloads.get(name).model.family for name in SIDES} == BLOCKS.keys()


THOROUGH = [pytest.param("resnet50", marks=pytest.mark.thorough)]  # another test covers its family


@pytest.mark.parametrize("name", [*(name for name in SIDES if name != "resnet50"), *THOROUGH])
def test_recomputed_blocks_train_as_kept_ones_in_every_workload(name: str):
    workload = small(name, SIDES[name])
    pool = batches(workload)
    sessions = {backend: opened(workload, backend, ON) for backend in twins.BOTH}
    plain = opened(workload, "torch", "stock")
    wanted = steps(plain, pool)
    same(steps(sessions["torch"], pool), wanted, 1e-14)
    same(steps(sessions["jax"], pool), wanted, 1e-10)
    for session, on in ((plain, False), (sessions["torch"], True)):
        session.feed(pool)
        assert session.settings()["rematerialisation"] is on
    assert torchbackend.rematerialisation.count_recomputed(sessions["torch"]._step.model) == COUNTS[name]
    sessions["jax"].feed(pool)
    assert recomputed_in_jax(sessions["jax"]) == COUNTS[name]


def test_jax_s_program_plans_less_memory_and_settings_tell_why():
    workload = small("cifar-resnet18", 16, depths=(4,), widths=(4,))
    planned: list[int] = []
    for tuning, on in (("stock", False), (ON, True)):
        session = opened(workload, "jax", tuning)
        session.feed(batches(workload, 1))
        planned.append(session.memory().static_bytes)
        if on:
            assert session.settings()["rematerialisation"] is True
    assert planned[1] < 0.7 * planned[0]


def count_kept_bytes(session: Any, batch: Batch) -> int:
    """Return the bytes that torch's forward pass keeps for the backward pass, without parameters."""
    storages: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in session._step.model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    placed = session._input.place(batch)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = session._step._forward(*placed)
    found = sum(size for place, size in storages.items() if place not in own)
    loss.backward()
    return found


@pytest.mark.parametrize("name", ["cifar-resnet18", "vgg16", "mobilenet-v2", "unet", "convnext-tiny"])
def test_torch_keeps_less_for_the_backward_pass(name: str):
    workload = small(name, 33)
    (batch,) = batches(workload, 1)
    less, all_of_it = (count_kept_bytes(opened(workload, "torch", tuning), batch) for tuning in (ON, "stock"))
    assert less < 0.6 * all_of_it


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_torch_recomputes_in_the_dtypes_of_the_first_time(precision: str):
    workload = small("cifar-cnn", 7)
    pool, found = batches(workload), list[Arrays]()
    for tuning in ("stock", ON):
        session = opened(workload, "torch", tuning, precision=precision, loss_scale=128.0)
        found.append(steps(session, pool))
    same(found[1], found[0], 0.0)


@pytest.mark.parametrize("backend", twins.BOTH)
def test_micro_batches_move_the_running_statistics_once_each(backend: str):
    workload = small("cifar-cnn", 7)
    pool = batches(workload)
    wanted = steps(opened(workload, "torch", "stock", accumulate=2), pool)
    same(steps(opened(workload, backend, ON, accumulate=2), pool), wanted, 1e-10)


def test_torch_counts_a_batch_once():
    workload = small("cifar-resnet18", 5)
    session = opened(workload, "torch", ON)
    steps(session, batches(workload, 3))
    counts = {name: int(a) for name, a in session._step.model.named_buffers() if name.endswith("batches_tracked")}
    assert len(counts) == 6
    assert set(counts.values()) == {3}


@pytest.mark.usefixtures("programs_of_its_own")
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)])
def test_a_compiled_program_recomputes_records_once_and_moves_the_statistics_once(
    compiler: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torchbackend.only.programs, "compiler", lambda **_: compiler)
    workload = small("cifar-cnn", 7, widths=(4,))
    pool = batches(workload)
    wanted = steps(opened(workload, "torch", "stock"), pool)
    session = opened(workload, "torch", "compiled+rematerialisation")
    same(steps(session, pool), wanted, 1e-12)
    less = count_kept_bytes(session, pool[0])
    session.feed(pool)
    found = session.settings()
    assert (found["compile"], found["graph-breaks"], found["rematerialisation"]) == (True, 0, True)
    assert less < 0.7 * count_kept_bytes(opened(workload, "torch", "compiled"), pool[0])


def test_captured_steps_recompute(monkeypatch: pytest.MonkeyPatch):
    workload = small("cifar-cnn", 7)
    pool = batches(workload, 3)
    wanted = twins.trained(opened(workload, "torch", "stock"), pool, 7).export()
    recorded_graph.pretend(monkeypatch)
    made = spec(workload, "torch", ON)
    switches = {"graph-capture": True, "fused-optimizer": True, "steps-per-dispatch": 3}
    session = twins.BACKENDS["torch"].open(replace(made, knobs={**made.knobs, **switches}))
    session.assign(weights.randomise(session.signature(), 3))
    found = twins.trained(session, pool, 7).export()
    for kind in ("parameters", "buffers", "optimizer"):
        same(getattr(found, kind), getattr(wanted, kind), 1e-13)


@pytest.mark.parametrize("backend", twins.BOTH)
def test_a_model_without_blocks_is_refused(backend: str):
    with pytest.raises(Refused, match=r"rematerialisation of this workload's model: .* allowed: .*cifar-cnn"):
        twins.session(backend, "digits-cnn", ON)
