"""Communication that computation does not hide: the arithmetic on kernels, and what a run makes of them."""

import random
from pathlib import Path
from typing import Any

import pytest

from compare.base import communication, typed_json
from compare.base.interface import Kernel
from compare.machine import environment
from compare.settings.options import Settings
from compare.studies import scaling, scaling_result
from tests.fakebackend import plans

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TICK = 1e-3


def kernel(name: str, begin: int, end: int, device: str = "0") -> Kernel:
    return Kernel(device, name, begin * TICK, end * TICK)


@pytest.mark.parametrize(
    ("kernels", "ticks"),
    [
        ([kernel("gemm", 0, 5)], 0),
        ([kernel(NCCL, 0, 5)], 5),
        ([kernel("gemm", 0, 5), kernel(NCCL, 1, 4)], 0),
        ([kernel("gemm", 0, 5), kernel(NCCL, 3, 9)], 4),
        ([kernel(NCCL, 0, 9), kernel("gemm", 2, 4), kernel("Memcpy DtoD", 3, 6)], 5),
        ([kernel(NCCL, 0, 2), kernel(NCCL, 1, 3), kernel("gemm", 5, 6)], 3),  # two streams, one time
        ([kernel("gemm", 0, 5), kernel(NCCL, 0, 4, "1"), kernel("gemm", 3, 5, "1")], 1.5),  # mean of 0 and 3
    ],
)
def test_only_communication_with_nothing_beside_it_counts(kernels: list[Kernel], ticks: float) -> None:
    assert communication.compute_exposed_seconds(kernels, 1) == pytest.approx(ticks * TICK)
    assert communication.compute_exposed_seconds(kernels, 4) == pytest.approx(ticks * TICK / 4)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_counting_every_tick_gives(seed: int) -> None:
    draw = random.Random(seed)
    kernels: list[Kernel] = []
    for _ in range(40):
        begin = draw.randrange(100)
        kernels.append(kernel(draw.choice([NCCL, "gemm", "copy"]), begin, begin + draw.randrange(8)))
    exposed = 0
    for tick in range(110):
        running = {each.name for each in kernels if each.begin < (tick + 0.5) * TICK < each.end}
        exposed += running == {NCCL}
    assert communication.compute_exposed_seconds(kernels, 1) == pytest.approx(exposed * TICK)


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        (NCCL, True),
        ("ncclKernel_ReduceScatter_RING_LL", True),
        ("void stream_executor::gpu::AllReduceKernelImpl<float, 2>", True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", False),
        ("loop_multiply_reduce_fusion", False),
        ("triton_red_fused__native_batch_norm_legit_functional_all_3", False),
        ("Memcpy PtoP (Device -> Device)", False),
    ],
)
def test_communication_is_told_by_the_kernels_name(name: str, communicates: bool) -> None:
    assert (communication.compute_exposed_seconds([kernel(name, 0, 1)], 1) > 0) == communicates


def test_without_kernels_there_is_a_reason_and_no_zero() -> None:
    found = communication.measure([], 10)
    assert (found.exposed_seconds, found.steps) == (None, None)
    assert "no kernels" in (found.reason or "")


def test_kernels_without_any_of_communication_give_a_reason_and_no_zero() -> None:
    found = communication.measure([kernel("gemm", 0, 5)], 10)
    assert (found.exposed_seconds, found.steps) == (None, None)
    assert "none of communication" in (found.reason or "")
    assert communication.measure([kernel("gemm", 0, 5), kernel(NCCL, 1, 4)], 10).exposed_seconds == 0


def scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **script: Any) -> list[dict[str, Any]]:
    """Return `scaling[]` of fakes on one and on two devices of a GPU that is not there: no framework looks for it."""
    plans.register(monkeypatch, tmp_path, {"fake": script})
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    monkeypatch.setattr(environment, "count_visible_gpus", lambda: 2)
    small: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch_size": 8, "deadline": 20.0}
    task = scaling.make(
        Settings(contenders=["fake:stock+ddp", "other:stock+ddp"], out=tmp_path / "out", device="cuda", **small), [1, 2]
    )
    result = scaling_result.build(task, scaling.run(task, [])[0], [])
    assert scaling_result.load(scaling_result.write(result, tmp_path / "out")) == result
    return typed_json.write(result.scaling)


def test_a_scaling_has_it_on_more_than_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, *_ = scaled(tmp_path, monkeypatch)
    assert (one["devices"], one["communication_seconds"]) == (1, None)
    assert one["absent"]["communication_seconds"] == "one device has none to communicate with"
    assert two["communication_seconds"] == pytest.approx(0.001)
    assert "communication_seconds" not in two["absent"]


def test_a_profiler_that_fails_costs_that_figure_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, two, *_ = scaled(tmp_path, monkeypatch, fault="raise", at="kernels")
    assert (two["status"], two["reason"], two["communication_seconds"]) == ("ok", None, None)
    assert two["absent"]["communication_seconds"] == "the framework's profiler failed: scripted failure"
    assert two["efficiency"] is not None
