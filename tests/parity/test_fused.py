"""The knob fused-batch-norm: fused blocks train like separate layers. Without it, nothing of it is there."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from compare.base.interface import Arrays, Refused
from compare.data import weights
from compare.kernels import plans
from compare.kernels.launches import Blocks, Mask
from compare.kernels.plans import Part
from jaxbackend.only import kernel_calls
from tests.parity import twins
from tests.parity.small import SIDES, batches, small, spec

BLOCKS = Blocks(32, 16, 16, 1, 2)
# Tiles have powers of two as sides.
WORKLOAD = small("resnet50", SIDES["resnet50"], widths=(8, 16))
KERNELS = ("multiply", "data_gradient", "weight_gradient")
USED = set[str]()
"""The kernels that a test has used."""


def choose_everywhere(kernels: tuple[str, ...] = KERNELS) -> dict[Part, Blocks]:
    """Return block sizes of these kernels, for every product that they compute."""
    widths = sorted({2**power for power in range(3, 8)})
    masks: dict[str, tuple[Mask, ...]] = {"multiply": ("none", "plain", "affine")}
    return {
        (kernel, inner, outer, mask): BLOCKS
        for kernel in kernels
        for inner in widths
        for outer in widths
        for mask in masks.get(kernel, ("plain",))
    }


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let sessions use the kernels on a CPU: those that the test has chosen, by Triton's interpreter."""
    from tests.parity import interpreted  # skips this test without Triton

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "a CPU")
    monkeypatch.setattr(plans, "use", lambda *_arguments, **_options: None)
    monkeypatch.setattr(kernel_calls, "load", lambda: None)
    monkeypatch.setattr(kernel_calls, "call", interpreted.call_from_jax)
    find = plans.find

    def find_and_note(kernel: str, *product: Any) -> list[int] | None:
        blocks = find(kernel, *product)
        if blocks is not None:
            USED.add(kernel)
        return blocks

    USED.clear()
    monkeypatch.setattr(plans, "find", find_and_note)
    yield
    torch.compiler.reset()


def train(backend: str, *, fused: bool, precision: str) -> Arrays:
    """Return the internals of two steps."""
    made = spec(WORKLOAD, backend, "stock", precision=precision)
    session: Any = twins.BACKENDS[backend].open(replace(made, knobs={**made.knobs, "fused-batch-norm": fused}))
    session.assign(weights.randomise(session.signature(), 3))
    pool = batches(WORKLOAD)
    session.feed(pool)
    assert session.settings()["fused-batch-norm"] is fused
    found = {
        f"{step}/{name}": array for step, batch in enumerate(pool) for name, array in session.inspect(batch).items()
    }
    session.run(1)
    session.wait()
    assert np.isfinite(session.losses()).all()
    return found


def check_same(found: Arrays, wanted: Arrays, tolerance: float) -> None:
    assert list(found) == list(wanted)  # each layer once, in execution order
    for name, array in found.items():
        limit = tolerance * max(np.abs(wanted[name]).max(), 1e-3)
        np.testing.assert_allclose(array, wanted[name], rtol=0, atol=limit, err_msg=name)


@pytest.mark.usefixtures("without_a_gpu")
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_reference_form_is_exact(backend: str) -> None:
    with plans.using(choose_everywhere()):
        fused = train(backend, fused=True, precision="float64")
    check_same(fused, train(backend, fused=False, precision="float64"), 1e-10)


@pytest.mark.usefixtures("without_a_gpu")
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("kernels", [KERNELS, KERNELS[:2], KERNELS[::2]])
def test_the_kernels_train_like_separate_layers(backend: str, kernels: tuple[str, ...]) -> None:
    with plans.using(choose_everywhere(kernels)):
        fused = train(backend, fused=True, precision="float32")
    assert set(kernels) == USED
    check_same(fused, train(backend, fused=False, precision="float32"), 2e-3)


@pytest.mark.usefixtures("without_a_gpu")
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("kept", ["first", "last"])
def test_blocks_without_a_kernel_stand_beside_fused_ones(backend: str, kept: str) -> None:
    every = choose_everywhere()
    first, *_ = WORKLOAD.model.arguments["widths"]  # the inner channels of all products in the first block
    parts = {part: every[part] for part in every if (part[1] == first) is (kept == "first")}
    with plans.using(parts):
        fused = train(backend, fused=True, precision="float64")
    check_same(fused, train(backend, fused=False, precision="float64"), 1e-10)


def test_compilers_keep_the_gradients_of_fused_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "a CPU")
    monkeypatch.setattr(plans, "use", lambda *_arguments, **_options: None)
    made = spec(WORKLOAD, "torch", "stock", precision="float64")
    session: Any = twins.BACKENDS["torch"].open(replace(made, knobs={**made.knobs, "fused-batch-norm": True}))
    session.assign(weights.randomise(session.signature(), 3))
    model = session._step.model
    images, _ = session._input.place(batches(WORKLOAD)[0])

    def gradients(run: Any) -> list[torch.Tensor]:
        return list(torch.autograd.grad(run(images).square().sum(), list(model.parameters())))

    with plans.using(choose_everywhere()):
        plain, compiled = gradients(model), gradients(torch.compile(model, backend="aot_eager"))
    torch.compiler.reset()
    for wanted, found in zip(plain, compiled, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_without_the_knob_nothing_is_imported(backend: str) -> None:
    program = (
        f"import sys, {backend}backend.session, {backend}backend.models.resnet\n"
        f"names = '{backend}backend.fused', 'compare.kernels.products', 'jax_triton', "
        "'torchbackend.only.kernel_operators'\n"
        "print([name for name in names if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["[]"]


def test_an_unmeasured_device_is_refused() -> None:
    with pytest.raises(Refused, match=r"fused-batch-norm was measured on NVIDIA H200, and this is a CPU"):
        plans.use("a CPU", 2, tf32=False)


def test_every_device_has_kernels_for_wide_values() -> None:
    for device in plans.DEVICES:
        for value_bytes in (2, 4):
            with plans.using({}):
                plans.use(device, value_bytes, tf32=False)
                assert plans.has_any(64, 256)
