"""Memory on both sides: limits, figures, and the errors of exhausted memory."""

from dataclasses import replace
from typing import Any

import jax
import pytest
import torch

import jaxbackend.memory
import torchbackend.memory
from compare.base.interface import Refused
from tests.parity import recorded_graph, twins
from torchbackend.step import TrainingStep

GIBIBYTE = 2**30


class Gpu:
    """The part of a device that `jaxbackend.memory.limit` reads."""

    platform = "gpu"

    def __init__(self, stats: dict[str, int] | None) -> None:
        self._stats = stats

    def memory_stats(self) -> dict[str, int] | None:
        return self._stats and dict(self._stats)


def test_on_a_cpu_the_limit_is_the_workers():
    torchbackend.memory.limit(torch.device("cpu"), 1)
    jaxbackend.memory.limit(jax.devices("cpu")[0], 1)


@pytest.mark.parametrize("backend", twins.BOTH)
def test_a_session_hands_its_limit_on(monkeypatch: pytest.MonkeyPatch, backend: str):
    seen: list[tuple[str, int | None]] = []
    for module in (jaxbackend.memory, torchbackend.memory):
        monkeypatch.setattr(module, "limit", lambda device, limit: seen.append((str(device), limit)))
    twins.BACKENDS[backend].open(twins.spec(backend, memory_limit_bytes=GIBIBYTE))
    ((device, limit),) = seen
    assert "cpu" in device.lower()
    assert limit == GIBIBYTE


@pytest.mark.parametrize("stats", [None, {}, {"bytes_limit": GIBIBYTE + 1}])
def test_jax_refuses_a_limit_that_its_allocator_does_not_have(stats: dict[str, int] | None):
    with pytest.raises(Refused, match=r"jax's allocator has the limit .*, not 1073741824"):
        jaxbackend.memory.limit(Gpu(stats), GIBIBYTE)


@pytest.mark.parametrize(("stats", "limit"), [({"bytes_limit": GIBIBYTE}, GIBIBYTE), (None, None)])
def test_jax_takes_a_limit_that_its_allocator_has(stats: dict[str, int] | None, limit: int | None):
    jaxbackend.memory.limit(Gpu(stats), limit)


def test_jax_holds_what_it_trains_and_no_copy_of_what_a_model_was_made_with():
    held, needed = twins.held_by_jax(lambda: twins.session("jax", "cifar-cnn"), twins.batches("cifar-cnn", 1))
    assert needed <= held < 1.01 * needed


def test_jaxs_peaks_are_read_before_its_plan_is_compiled():
    stats = {"peak_bytes_in_use": 2, "peak_pool_bytes": 3}

    def lowered() -> jax.stages.Lowered:
        stats.update(peak_bytes_in_use=20, peak_pool_bytes=30)  # as a search for kernels does
        return jax.jit(lambda x: x + 1).lower(jax.numpy.zeros(256, "float32"))

    report = jaxbackend.memory.report([Gpu(stats)], lowered)
    assert (report.live_peak_bytes, report.pool_peak_bytes) == (2, 3)
    assert report.static_bytes == 2 * 1024


def test_jaxs_plan_counts_donated_memory_once():
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    report = jaxbackend.memory.report(jax.devices("cpu"), lambda: donating.lower(jax.numpy.zeros(256, "float32")))
    assert report.static_bytes == 1024


def test_torchs_peaks_begin_after_the_search_and_before_what_is_captured(monkeypatch: pytest.MonkeyPatch):
    before, taken = list[int](), list[int]()
    step = TrainingStep.__call__

    def counted(self: TrainingStep, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        taken.append(len(images))
        return step(self, images, labels)

    monkeypatch.setattr(TrainingStep, "__call__", counted)
    monkeypatch.setattr(torchbackend.memory, "reset_peaks", lambda _: before.append(len(taken)))
    pool = twins.batches("digits-cnn", 4)
    plain = twins.BACKENDS["torch"].open(twins.spec("torch"))
    for _ in range(2):
        twins.trained(plain, pool, 3)
    assert (before, len(taken)) == ([1], 6)
    before.clear()
    taken.clear()
    recorded_graph.pretend(monkeypatch)
    knobs = {"graph-capture": True, "fused-optimizer": True, "steps-per-dispatch": 2}
    spec = twins.spec("torch")
    captured = twins.BACKENDS["torch"].open(replace(spec, knobs={**spec.knobs, **knobs}))
    twins.trained(captured, pool, 4)
    assert (before, len(taken)) == ([3], 3 + 2)  # three steps of warm-up, two that the graph repeats


def test_torch_resets_peaks_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch):
    asked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    for kind in ("cpu", "cuda"):
        torchbackend.memory.reset_peaks(torch.device(kind))
    assert asked == [torch.device("cuda")]


@pytest.mark.parametrize(("limit", "fraction"), [(GIBIBYTE, 0.25), (4 * GIBIBYTE, 1.0), (8 * GIBIBYTE, 1.0)])
def test_torch_is_given_its_limit_as_a_fraction_of_what_it_sees(
    monkeypatch: pytest.MonkeyPatch, limit: int, fraction: float
):
    given: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 * GIBIBYTE, 4 * GIBIBYTE))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    torchbackend.memory.limit(torch.device("cuda"), limit)
    assert given == [fraction]


@pytest.mark.parametrize(
    ("backend", "error"),
    [
        (torchbackend, torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
        (torchbackend, RuntimeError("CUDA error: out of memory")),
        (torchbackend, RuntimeError("CUDA driver error: out of memory")),
        (torchbackend, RuntimeError("Triton Error [CUDA]: out of memory")),
        (torchbackend, RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")),
        (torchbackend, RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
        (torchbackend, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")),
        (jaxbackend, jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")),
        (jaxbackend, jax.errors.JaxRuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 8")),
        (jaxbackend, jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory")),
        (jaxbackend, jax.errors.JaxRuntimeError("INTERNAL: cuBLAS handle: CUBLAS_STATUS_ALLOC_FAILED")),
        (jaxbackend, jax.errors.JaxRuntimeError("DNN library initialization failed: CUDNN_STATUS_ALLOC_FAILED")),
    ],
)
def test_running_out_of_memory_is_known(backend: Any, error: BaseException):
    assert backend.memory.out_of_memory(error)


@pytest.mark.parametrize("inner", [torch.cuda.OutOfMemoryError("CUDA out of memory."), MemoryError("std::bad_alloc")])
def test_running_out_of_memory_is_known_inside_torch_compile(inner: BaseException):
    def backend(*_: Any) -> Any:
        raise inner

    torch.compiler.reset()
    with pytest.raises(Exception, match=r"raised:\n") as caught:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert type(caught.value) is not type(inner)
    assert torchbackend.memory.out_of_memory(caught.value)


def test_running_out_of_memory_is_known_where_jax_starts():
    error = RuntimeError("Unable to initialize backend 'cuda'")
    error.__context__ = jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory")
    assert jaxbackend.memory.out_of_memory(error)


@pytest.mark.parametrize(
    ("backend", "error"),
    [
        (torchbackend, RuntimeError("CUDA error: an illegal memory access was encountered")),
        (torchbackend, RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")),
        (torchbackend, RuntimeError("Triton Error [CUDA]: invalid argument")),
        (jaxbackend, jax.errors.JaxRuntimeError("INTERNAL: illegal memory access")),
        (jaxbackend, jax.errors.JaxRuntimeError("FAILED_PRECONDITION: DNN library initialization failed.")),
        (jaxbackend, RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")),
    ],
)
def test_another_error_is_not_running_out_of_memory(backend: Any, error: BaseException):
    assert not backend.memory.out_of_memory(error)
