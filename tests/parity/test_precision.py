"""Mixed precision: values that stay float32, and float16's dynamic loss scale, by the same rule on both sides."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jaxbackend.layers
import jaxbackend.layout
import jaxbackend.precision
import torchbackend.layers
import torchbackend.precision
from compare.base import precisions
from compare.base.interface import Array, Session
from compare.base.precisions import Precision
from compare.data import weights
from jaxbackend.only.loss_scale import LossScale
from tests.parity import twins
from torchbackend.only.grad_scaler import make_grad_scaler

INFINITE, FINITE = False, True


def is_bfloat16(array: Array) -> bool:
    return not (array.view(np.uint32) & 0xFFFF).any()


# XLA takes statistics before it rounds the convolution's output (its excess precision). Torch takes them after it.
# Statistics in bfloat16 would be off by 4e-3.
@pytest.mark.parametrize(("backend", "tolerance"), [("jax", 2e-3), ("torch", 2e-6)])
def test_bfloat16_computes_layers_in_bfloat16_and_keeps_the_rest_in_float32(
    backend: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
):
    twins.narrow(monkeypatch)
    session = twins.session(backend, "cifar-cnn", precision="bfloat16")
    (batch,) = twins.batches("cifar-cnn", 1)
    before = session.export()
    found = session.inspect(batch)
    after = session.export()
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    for state in (after.parameters, after.buffers, after.optimizer):
        assert {array.dtype for array in state.values()} == {np.dtype(np.float32)}
    layers = {name: array for name, array in found.items() if name.startswith("activation/")}
    assert all(is_bfloat16(array) for array in layers.values())
    assert not is_bfloat16(found["loss"])
    assert not any(is_bfloat16(array) for name, array in found.items() if name.startswith("update/"))
    for block in range(4):  # statistics of the convolution's output, not rounded to bfloat16
        name = f"blocks.{block}.norm"
        wide = layers[f"activation/blocks.{block}.conv"].astype(np.float64)
        mean = 0.9 * before.buffers[f"{name}.mean"] + 0.1 * wide.mean((0, 1, 2))
        var = 0.9 * before.buffers[f"{name}.var"] + 0.1 * wide.var((0, 1, 2), ddof=1)
        np.testing.assert_allclose(found[f"buffer/{name}.mean"], mean, rtol=tolerance, atol=tolerance / 20)
        np.testing.assert_allclose(found[f"buffer/{name}.var"], var, rtol=tolerance)
        assert not is_bfloat16(found[f"buffer/{name}.mean"])
        assert not is_bfloat16(found[f"buffer/{name}.var"])
    session.feed([batch])
    settings = session.settings()
    assert (settings["parameter_dtype"], settings["compute_dtype"]) == ("float32", "bfloat16")


@pytest.mark.parametrize("on", [False, True])
def test_debugging_that_slows_a_step_down_is_read_back(on: bool):
    with torch.autograd.set_detect_anomaly(on, check_nan=False), jax.debug_nans(on):
        settings = {backend: debugged(twins.session(backend)) for backend in twins.BOTH}
    if jax.config.values["jax_disable_most_optimizations"]:  # most tests set it, to save time
        settings["jax"].remove("jax_disable_most_optimizations")
    assert settings == ({"torch": ["anomaly detection"], "jax": ["jax_debug_nans"]} if on else {"torch": [], "jax": []})


def debugged(session: Session) -> list[str]:
    session.feed(twins.batches("digits-cnn", 1))
    return session.settings()["debugging"]


PIXELS = (16, 32, 32, 3)  # 16,384 pixels: their sum in bfloat16 would stop growing at a few hundred
SUMMED = {
    "Conv": ((3, 3, 1), "bias"),
    "ConvTranspose": ((3, 3, 1), "bias"),
    "Dense": ((3, 3), "bias"),
    "LayerScale": ((3,), "gamma"),
}


def jax_gradient(name: str, images: Array, weight: Array) -> Array:
    sizes, parameter = SUMMED[name]
    layer = getattr(jaxbackend.layers, name)(*sizes, policy=jaxbackend.precision.policy("bfloat16", "cpu"))
    graph, values = nnx.split(layer)
    x, factor = (jnp.asarray(array, jnp.bfloat16) for array in (images, weight))
    gradient = jax.jit(jax.grad(lambda values: (nnx.merge(graph, values)(x) * factor).astype(jnp.float32).sum()))
    found = gradient(nnx.to_pure_dict(values))
    return jaxbackend.layout.fetch(jaxbackend.layout.export(found, None))[parameter]


def torch_gradient(name: str, images: Array, weight: Array) -> Array:
    sizes, parameter = SUMMED[name]
    policy = torchbackend.precision.policy("bfloat16", "cpu")
    layer = getattr(torchbackend.layers, name)(*sizes, policy=policy)
    axes = (0, 3, 1, 2) if images.ndim == 4 else (0, 1)
    x, factor = (torch.from_numpy(array).bfloat16().permute(axes) for array in (images, weight))
    with torch.autocast("cpu", policy.compute_dtype):
        (layer(x) * factor).float().sum().backward()
    return getattr(layer, parameter).grad.float().numpy()


@pytest.mark.parametrize("gradient", [jax_gradient, torch_gradient], ids=["jax", "torch"])
@pytest.mark.parametrize("name", SUMMED)
def test_gradients_of_bias_and_layer_scale_are_summed_in_float32(name: str, gradient: Callable[..., Array]):
    random = np.random.default_rng(0)
    shape = (PIXELS[0] * 256, 3) if name == "Dense" else PIXELS
    images, weight = (random.normal(0.5, 1, shape).astype(np.float32) for _ in range(2))
    rounded = [torch.from_numpy(array).bfloat16().double().numpy() for array in (images, weight)]
    each = rounded[0] * rounded[1] if name == "LayerScale" else rounded[1]
    expected = each.sum(tuple(range(each.ndim - 1)))
    np.testing.assert_allclose(gradient(name, images, weight), expected, rtol=5e-3)


def torch_scales(outcomes: list[bool], start: float) -> list[float]:
    policy = torchbackend.precision.policy("float16", "cpu")
    scaler = make_grad_scaler(policy, "cpu")
    parameter = torch.nn.Parameter(torch.zeros(()))
    update = torch.optim.SGD([parameter], 0.1)
    scaler.load_state_dict(scaler.state_dict() | {"scale": start})
    scaler.scale(parameter)
    found: list[float] = []
    for finite in outcomes:
        parameter.grad = torch.tensor(1.0 if finite else float("inf"))
        scaler.step(update)
        scaler.update()
        found.append(scaler.get_scale())
    return found


def jax_scales(outcomes: list[bool], start: float) -> list[float]:
    state = LossScale.initial(jaxbackend.precision.policy("float16", "cpu"))
    assert state is not None
    state = state._replace(scale=jnp.float32(start))
    update, found = jax.jit(lambda state, finite: state.update(finite)), []
    for finite in outcomes:
        state = update(state, finite)
        found.append(float(state.scale))
    return found


@pytest.mark.parametrize("scales", [torch_scales, jax_scales])
def test_the_loss_scale_halves_on_overflow_and_doubles_after_2000_finite_steps_in_a_row(scales):
    outcomes = [INFINITE, INFINITE, *[FINITE] * 1999, INFINITE, *[FINITE] * 4000]
    found = scales(outcomes, 65536.0)
    assert found[:3] == [32768.0, 16384.0, 16384.0]
    assert found[2000:2002] == [16384.0, 8192.0]
    assert found[2001 + 1999 : 2001 + 2002] == [8192.0, 16384.0, 16384.0]
    assert found[-2:] == [16384.0, 32768.0]


@pytest.mark.parametrize("scales", [torch_scales, jax_scales])
def test_the_loss_scale_does_not_grow_past_float32(scales):
    largest = 2.0**127
    assert scales([FINITE] * 2000, largest)[-1] == largest


def test_torch_s_switches_are_as_they_were_once_the_scope_ends():
    switches = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv")  # noqa: B009 -- no type stub has it
    before = [switch.fp32_precision for switch in switches]
    for precision, inside in (("tf32", "tf32"), ("float32", "ieee")):
        with torchbackend.precision.policy(precision, "cuda").scope():
            assert [switch.fp32_precision for switch in switches] == [inside] * 2
        assert [switch.fp32_precision for switch in switches] == before


def test_the_first_scale_is_gradscaler_s():
    scaler = torch.amp.GradScaler("cpu")
    for backend in (jaxbackend.precision, torchbackend.precision):
        assert scaler.get_scale() == backend.policy("float16", "cpu").loss_scale
        assert scaler.get_growth_factor() == backend.GROWTH_FACTOR
        assert scaler.get_backoff_factor() == backend.BACKOFF_FACTOR
        assert scaler.get_growth_interval() == backend.GROWTH_INTERVAL


@pytest.mark.parametrize("backend", [jaxbackend.precision, torchbackend.precision])
def test_a_new_precision_has_the_dtypes_of_its_entry_in_both_backends(backend: Any, monkeypatch: pytest.MonkeyPatch):
    entry = Precision("float8", "float32", "float8_e4m3fn", 2.0**-4, launch_difference=0.2)
    monkeypatch.setitem(precisions.PRECISIONS, entry.name, entry)  # pyright: ignore[reportArgumentType]
    for name, facts in precisions.PRECISIONS.items():
        policy = backend.policy(name, "cuda")
        for dtype, wanted in (
            (policy.parameter_dtype, facts.storage_dtype),
            (policy.compute_dtype, facts.compute_dtype),
        ):
            assert wanted == getattr(dtype, "__name__", str(dtype).removeprefix("torch.")), name
        assert (policy.loss_scale is not None) == facts.has_loss_scale


def overflow_then_train(session: Session) -> list[bool]:
    """Train on images with scaled gradients that leave float16 at first. Tell which steps updated the weights."""
    start = weights.randomise(session.signature(), 3)
    start["blocks.3.norm.scale"] *= 14  # large inputs of the dense layer: large gradients of its kernel
    session.assign(start)
    batches = twins.batches("cifar-cnn", 3)
    taken: list[bool] = []
    for step in range(10):
        before = session.export()
        found = session.inspect(batches[step % 3])
        after = session.export()
        assert after.step == before.step + 1 == step + 1
        assert np.isfinite(found["loss"])
        for name, array in after.buffers.items():
            assert not np.array_equal(array, before.buffers[name])
        finite = all(np.isfinite(array).all() for name, array in found.items() if name.startswith("gradient/"))
        moved = [name for name, array in after.parameters.items() if not np.array_equal(array, before.parameters[name])]
        assert len(moved) == (len(after.parameters) if finite else 0)
        if not finite:
            for name, array in after.optimizer.items():
                np.testing.assert_array_equal(array, before.optimizer.get(name, np.zeros_like(array)))
        taken.append(finite)
    return taken


def test_an_overflow_skips_the_update_but_not_batch_norm_nor_the_step_count(monkeypatch):
    twins.narrow(monkeypatch, learning_rate=1e-4)
    taken = {
        backend: overflow_then_train(twins.session(backend, "cifar-cnn", precision="float16")) for backend in twins.BOTH
    }
    assert taken["jax"] == taken["torch"]
    assert not taken["jax"][0]
    assert taken["jax"][-1]


@pytest.mark.parametrize("backend", twins.BOTH)
def test_assigning_again_starts_again_with_the_first_scale(backend: str, monkeypatch: pytest.MonkeyPatch):
    twins.narrow(monkeypatch, learning_rate=1e-4)
    session = twins.session(backend, "cifar-cnn", precision="float16")
    first = overflow_then_train(session)
    assert overflow_then_train(session) == first
    assert not first[0]


@pytest.mark.parametrize("tf32", [False, True])
def test_both_kinds_of_switches_can_be_read(tf32: bool):
    chosen = torchbackend.precision.Policy(torch.float32, torch.float32, tf32, None)
    with chosen.scope():
        # AOTInductor reads the older switches, and torch refuses where they contradict the others.
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (tf32, tf32)
        assert torchbackend.precision.uses_tf32() == tf32
