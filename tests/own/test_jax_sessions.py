"""Sessions of users' flax models: training, records and results under neutral names."""

from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen, nnx, traverse_util

from compare.base.interface import Arrays, Refused, Session
from compare.base.trace import Layer
from compare.base.workloads import ModelSpec, OptimizerSpec
from jaxbackend import precision, user_models
from jaxbackend.only import run_settings
from tests.own import flax_models, jax_pairs, torch_layers
from tests.parity import twins

pytestmark = pytest.mark.xdist_group("jax sessions")  # their first steps are taken once

FACTORIES = ("resnet", "kinds", "shared", "nnx_net", "flagged")
EVERY = pytest.mark.parametrize("factory", FACTORIES)


@dataclass
class Taken:
    """A session with stock tuning after two inspected steps."""

    model: ModelSpec
    layers: dict[str, Layer]
    session: Session
    before: Arrays
    first: Arrays
    losses: list[float]
    after: Arrays


@cache
def take_steps(factory: str) -> Taken:
    bare = jax_pairs.model(factory, (13, 13, 3))
    model = jax_pairs.named(bare)
    session = jax_pairs.opened(model)
    before = state(session)
    first, second = (session.inspect(batch) for batch in jax_pairs.batches(model, 2))
    layers = {neutral(layer.path): layer for layer in jax_pairs.traced(bare, 4).layers}
    losses = [float(each["loss"]) for each in (first, second)]
    return Taken(model, layers, session, before, first, losses, state(session))


def neutral(path: str) -> str:
    return path.lower().replace("/", ".")


def state(session: Session) -> Arrays:
    exported = session.export()
    return {**exported.parameters, **exported.buffers, **exported.optimizer}


def same(found: Arrays, expected: Arrays, tolerance: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=tolerance * (1 + abs(expected[name]).max()))


@EVERY
def test_what_is_assigned_is_exported_under_the_table_s_names(factory: str):
    case = take_steps(factory)
    table = case.model.arguments["names"]["jax"]["variables"]
    assert list(case.session.signature().items()) == [(each["name"], each["shape"]) for each in table]
    for name, array in jax_pairs.randomised(case.session.signature()).items():
        np.testing.assert_array_equal(case.before[name], array)
    exported = case.session.export()
    assert [*exported.parameters] == [each["name"] for each in table if each["is_parameter"]]
    assert [*exported.buffers] == [each["name"] for each in table if not each["is_parameter"]]
    assert {*exported.optimizer} == {f"momentum/{name}" for name in exported.parameters}


@EVERY
def test_running_steps_is_inspecting_them_and_batch_norm_moves(factory: str):
    case = take_steps(factory)
    session = jax_pairs.opened(case.model)
    session.feed(jax_pairs.batches(case.model, 2))
    session.run(2)
    same(state(session), case.after)
    np.testing.assert_allclose(session.losses(), case.losses, rtol=1e-12)
    for name in session.export().buffers:
        assert abs(case.after[name] - case.before[name]).max() > 1e-3


@pytest.mark.parametrize("factory", ["resnet", "nnx_net"])
def test_a_session_holds_no_copy_of_what_its_model_was_made_with(factory: str):
    model = take_steps(factory).model
    held, needed = twins.held_by_jax(lambda: jax_pairs.opened(model), jax_pairs.batches(model, 2))
    assert needed <= held < 1.01 * needed


@pytest.mark.parametrize(
    ("factory", "tuning"),
    [
        pytest.param("nnx_net", "compile=off", marks=pytest.mark.thorough),
        ("resnet", "tuned+steps-per-dispatch=2"),
        ("resnet", "pieces"),
        ("flagged", "compiled"),
    ],
)
def test_a_tuning_computes_what_stock_computes(factory: str, tuning: str):
    case = take_steps(factory)
    session = jax_pairs.opened(case.model, tuning)
    session.feed(jax_pairs.batches(case.model, 2))
    session.run(2)
    same(state(session), case.after, 1e-10)


@pytest.mark.parametrize("factory", ["resnet", "flagged"])
def test_micro_batches_move_batch_norm_one_after_the_other(factory: str):
    case = take_steps(factory)
    session = jax_pairs.opened(case.model, accumulate=2)
    whole = jax_pairs.batches(case.model, 2)[0]
    found = session.inspect(whole)
    norm = next(name for name, layer in case.layers.items() if layer.role == "batch-norm")
    momentum = case.layers[norm].settings["momentum"]
    expected = case.before[f"{norm}.mean"]
    for part in np.split(case.first[f"activation/{norm}.input"], 2):  # what comes before the first one is per image
        expected = (1 - momentum) * expected + momentum * part.mean((0, 1, 2))
    np.testing.assert_allclose(found[f"buffer/{norm}.mean"], expected, rtol=1e-10)
    assert found["logits"].shape == case.first["logits"].shape


@pytest.mark.parametrize(
    ("factory", "precision"),
    [
        ("resnet", "bfloat16"),
        pytest.param("kinds", "bfloat16", marks=pytest.mark.thorough),
        ("nnx_net", "bfloat16"),
        ("resnet", "float16"),
    ],
)
def test_a_factory_that_takes_dtype_computes_in_it(factory: str, precision: str):
    case = take_steps(factory)
    session = jax_pairs.opened(case.model, precision=precision)
    session.feed(jax_pairs.batches(case.model, 2))
    session.run(1)
    settings = session.settings()
    assert settings["layer_dtypes"] == dict.fromkeys(case.layers, precision)
    assert (settings["parameter_dtype"], settings["loss_scaling"]) == ("float32", precision == "float16")
    assert abs(session.losses()[0] - case.losses[0]) < 0.1


@EVERY
def test_inputs_and_outputs_are_recorded_in_order_of_execution(factory: str):
    case = take_steps(factory)
    found = {key.removeprefix("activation/"): a for key, a in case.first.items() if key.startswith("activation/")}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, layer in case.layers.items():
        shapes |= {f"{name}.input": layer.input, name: layer.output}
    assert {name: array.shape for name, array in found.items()} == shapes
    whole = "(model)"  # is over when all others are
    assert [name for name in found if name != whole] == [name for name in shapes if name != whole]


@EVERY
def test_a_layer_alone_gives_what_it_gives_in_the_model_and_what_torch_gives(factory: str):
    case = take_steps(factory)
    session = jax_pairs.opened(case.model)
    for name, layer in case.layers.items():
        if "#" in name or layer.role == "embedding":
            continue
        inputs, output = (case.first[f"activation/{key}"] for key in (f"{name}.input", name))
        alone = session.run_layer(name, inputs, True)
        np.testing.assert_allclose(alone, output, rtol=1e-12, atol=1e-12)
        if layer.role == "parameters":
            continue
        own = {key.rpartition(".")[2]: array for key, array in case.before.items() if key.startswith(f"{name}.")}
        np.testing.assert_allclose(torch_layers.run(layer, own, inputs, True), alone, rtol=1e-10, atol=1e-10)
        if layer.role == "batch-norm":
            alone = session.run_layer(name, inputs, False)
            np.testing.assert_allclose(torch_layers.run(layer, own, inputs, False), alone, rtol=1e-10, atol=1e-10)
    same(state(session), case.before, 0.0)


def test_only_kernels_decay_where_only_kernels_shall():
    rule = OptimizerSpec("sgd", learning_rate=1.0, weight_decay=0.5, decay_kernels_only=True)
    case = take_steps("flagged")
    session = jax_pairs.opened(case.model, optimizer=rule)
    found = session.inspect(jax_pairs.batches(case.model, 2)[0])
    for name in session.export().parameters:
        decay = 0.5 * case.before[name] if name.endswith(".kernel") else 0.0
        np.testing.assert_allclose(found[f"update/{name}"], -found[f"gradient/{name}"] - decay, rtol=1e-9, atol=1e-12)


def test_evaluation_uses_the_running_statistics():
    case = take_steps("flagged")
    session = jax_pairs.opened(case.model)
    images = jax_pairs.batches(case.model, 2)[0].images
    one_by_one = np.concatenate([session.logits(image[None]) for image in images])
    np.testing.assert_allclose(session.logits(images), one_by_one, rtol=1e-12)
    assert abs(session.logits(images) - case.first["logits"]).max() > 1e-2


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(Refused, match=r"there is no layer 'cnov'; allowed: conv, norm, head"):
        take_steps("flagged").session.run_layer("cnov", np.zeros((1, 3, 3, 3)), True)
    with pytest.raises(Refused, match=r"there is no layer 'cnov'; allowed: conv, dense, flatten, pool"):
        twins.session("jax").run_layer("cnov", np.zeros((1, 8, 8, 1)), True)


def test_the_compute_dtype_is_that_of_products_whatever_comes_first():
    model = jax_pairs.named(jax_pairs.model("normed_first"))
    session = jax_pairs.opened(model, precision="bfloat16")
    session.feed(jax_pairs.batches(model, 1))
    settings = session.settings()
    assert next(iter(settings["layer_dtypes"].values())) == "float32"
    assert settings["compute_dtype"] == "bfloat16"


def test_a_norm_without_a_dtype_computes_in_that_of_torch_s_autocast():
    policy = precision.policy("bfloat16", "cpu")
    in_bfloat16 = linen.Conv(4, (1, 1)), linen.BatchNorm(), nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    in_their_own = linen.LayerNorm(), linen.GroupNorm(), linen.BatchNorm(dtype=np.float32)
    assert {run_settings.choose_dtype(each, policy) for each in in_bfloat16} == {policy.compute_dtype}
    assert {run_settings.choose_dtype(each, policy) for each in in_their_own} == {None}


def test_what_a_step_is_given_are_plain_containers_of_arrays():
    opened: list[Any] = [twins.session("jax"), jax_pairs.opened(jax_pairs.named(jax_pairs.model("resnet")))]
    for session in opened:
        held: list[Any] = [session._state]
        while held:
            each = held.pop()
            assert isinstance(each, (dict, tuple, jax.Array, int, type(None))), type(each)  # nnx.State takes JAX long
            held += each.values() if isinstance(each, dict) else each if isinstance(each, tuple) else []


def test_a_twin_s_layer_runs_alone_too():
    batch = twins.batches("digits-cnn", 1)[0]
    found = twins.session("jax").inspect(batch)
    alone = twins.session("jax").run_layer("conv", batch.images, True)
    np.testing.assert_allclose(alone, found["activation/conv"], rtol=1e-12)


@pytest.mark.parametrize("factory", ["resnet", "measured"])
def test_initial_values_are_those_of_flax_whether_or_not_they_depend_on_images(factory: str):
    model = jax_pairs.model(factory)
    found = user_models.build(model, precision.policy("float32", "cpu"), initialised=True).model
    module = getattr(flax_models, factory)()
    expected = module.init(jax.random.key(0), np.zeros((2, 9, 9, 3), np.float32))
    assert len(jax.tree.leaves(expected)) == len(jax.tree.leaves((found.parameters, found.buffers)))
    for name, state in (("params", found.parameters), ("batch_stats", found.buffers)):
        flat: dict[Any, Any] = traverse_util.flatten_dict(state)
        for path, array in flat.items():
            value = reduce(lambda inside, key: inside[key], path, expected[name])
            np.testing.assert_allclose(array, value, rtol=1e-6, atol=1e-7)
