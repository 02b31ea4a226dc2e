"""Sessions of users' flax models: what they train, record and give back under neutral names."""

import numpy as np
import pytest

from compare.interface import Arrays, Refused, Session
from compare.pairing.trace import Layer
from compare.workloads import OptimizerSpec
from tests.own import jax_pairs, torch_layers
from tests.parity import twins

IMAGE = (13, 13, 3)
FACTORIES = ("resnet", "kinds", "shared", "nnx_net", "flagged")
FLATTENED = {"kinds": {"hidden": 6}}
EVERY = pytest.mark.parametrize("factory", FACTORIES)


def spec(factory: str):
    return jax_pairs.named(jax_pairs.model(factory, IMAGE), FLATTENED.get(factory))


def state(session: Session) -> Arrays:
    exported = session.export()
    return {**exported.parameters, **exported.buffers, **exported.optimizer}


def same(found: Arrays, expected: Arrays, tolerance: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=tolerance * (1 + abs(expected[name]).max()))


@EVERY
def test_what_is_assigned_is_exported_under_the_table_s_names(factory: str, monkeypatch: pytest.MonkeyPatch):
    model = spec(factory)
    session = jax_pairs.opened(monkeypatch, model)
    table = model.arguments["names"]["jax"]["variables"]
    assert list(session.signature().items()) == [(each["name"], each["shape"]) for each in table]
    assigned = jax_pairs.randomised(session.signature())
    exported = session.export()
    assert {*exported.parameters} == {each["name"] for each in table if each["is_parameter"]}
    assert {*exported.buffers} == {each["name"] for each in table if not each["is_parameter"]}
    for name, array in assigned.items():
        np.testing.assert_array_equal({**exported.parameters, **exported.buffers}[name], array)


@EVERY
def test_running_steps_is_inspecting_them_and_batch_norm_moves(factory: str, monkeypatch: pytest.MonkeyPatch):
    model = spec(factory)
    pool = jax_pairs.batches(model, 2)
    ran, inspected = (jax_pairs.opened(monkeypatch, model) for _ in range(2))
    before = state(ran)
    ran.feed(pool)
    ran.run(2)
    found = [inspected.inspect(batch) for batch in pool]
    same(state(ran), state(inspected))
    np.testing.assert_allclose(ran.losses(), [each["loss"] for each in found], rtol=1e-12)
    for name in ran.export().buffers:
        assert not np.allclose(state(ran)[name], before[name])
    optimizer = ran.export().optimizer
    assert {*optimizer} == {f"momentum/{name}" for name in ran.export().parameters}


@pytest.mark.parametrize("factory", ["resnet", "nnx_net"])
@pytest.mark.parametrize("tuning", ["compile=off", "tuned+steps-per-dispatch=2", "compiled"])
def test_a_tuning_computes_what_stock_computes(factory: str, tuning: str, monkeypatch: pytest.MonkeyPatch):
    model = spec(factory)
    sessions = [jax_pairs.opened(monkeypatch, model, each) for each in ("stock", tuning)]
    for session in sessions:
        session.feed(jax_pairs.batches(model, 2))
        session.run(4)
    same(state(sessions[1]), state(sessions[0]), 1e-10)


@pytest.mark.parametrize("factory", ["resnet", "nnx_net"])
def test_micro_batches_move_batch_norm_one_after_the_other(factory: str, monkeypatch: pytest.MonkeyPatch):
    model = spec(factory)
    found = []
    for tuning in ("stock", "compile=off"):
        session = jax_pairs.opened(monkeypatch, model, tuning, accumulate=2)
        found.append(session.inspect(jax_pairs.batches(model, 1)[0]))
    same(found[1], found[0])
    whole = jax_pairs.opened(monkeypatch, model).inspect(jax_pairs.batches(model, 1)[0])
    assert found[0]["logits"].shape == whole["logits"].shape
    assert abs(found[0]["logits"] - whole["logits"]).max() > 1e-3


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("factory", ["resnet", "kinds", "nnx_net"])
def test_a_factory_that_takes_dtype_computes_in_it(factory: str, precision: str, monkeypatch: pytest.MonkeyPatch):
    model = spec(factory)
    session = jax_pairs.opened(monkeypatch, model, precision=precision)
    session.feed(jax_pairs.batches(model, 1))
    session.run(1)
    settings = session.settings()
    assert {*settings["layer_dtypes"].values()} == {precision}
    assert [*settings["layer_dtypes"]] == [layer.lower().replace("/", ".") for layer in called(model)]
    assert (settings["parameter_dtype"], settings["loss_scaling"]) == ("float32", precision == "float16")
    assert np.isfinite(session.losses()).all()


def called(model) -> dict[str, Layer]:
    return {layer.path: layer for layer in jax_pairs.traced(model, 4).layers}


@EVERY
def test_inputs_and_outputs_are_recorded_in_order_of_execution(factory: str, monkeypatch: pytest.MonkeyPatch):
    model = spec(factory)
    found = jax_pairs.opened(monkeypatch, model).inspect(jax_pairs.batches(model, 1)[0])
    recorded = {key.removeprefix("activation/"): array for key, array in found.items() if key.startswith("activation/")}
    shapes = {}
    for path, layer in called(model).items():
        name = path.lower().replace("/", ".")
        shapes |= {f"{name}.input": layer.input, name: layer.output}
    assert {name: array.shape for name, array in recorded.items()} == shapes
    outermost = "(model)"
    assert [name for name in recorded if name != outermost] == [name for name in shapes if name != outermost]


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_alone_gives_what_it_gives_in_the_model(factory: str, training: bool, monkeypatch: pytest.MonkeyPatch):
    model = spec(factory)
    batch = jax_pairs.batches(model, 1)[0]
    found = jax_pairs.opened(monkeypatch, model).inspect(batch)
    session = jax_pairs.opened(monkeypatch, model)
    before = state(session)
    for path, layer in called(model).items():
        name = path.lower().replace("/", ".")
        if "#" in path or layer.role == "embedding":
            continue
        alone = session.alone(name, found[f"activation/{name}.input"], training)
        if training:
            np.testing.assert_allclose(alone, found[f"activation/{name}"], rtol=1e-12, atol=1e-12)
        elif layer.role == "batch-norm":
            assert abs(alone - found[f"activation/{name}"]).max() > 1e-3
        if layer.role != "parameters":
            own = {key.rpartition(".")[2]: array for key, array in before.items() if key.startswith(f"{name}.")}
            expected = torch_layers.run(layer, own, found[f"activation/{name}.input"], training)
            np.testing.assert_allclose(alone, expected, rtol=1e-10, atol=1e-10)
    same(state(session), before, 0.0)


def test_channels_first_inputs_are_recorded_and_taken_channels_last(monkeypatch: pytest.MonkeyPatch):
    model = spec("kinds")
    session = jax_pairs.opened(monkeypatch, model)
    before = state(session)
    found = session.inspect(jax_pairs.batches(model, 1)[0])
    image = found["activation/instance_norm"]
    pooled = image.reshape(4, 14, 2, 14, 2, 6).mean((2, 4))
    np.testing.assert_allclose(found["activation/hidden.input"], pooled.reshape(4, -1), rtol=1e-12)
    product = found["activation/hidden.input"] @ before["hidden.kernel"]
    np.testing.assert_allclose(found["activation/hidden"], product, rtol=1e-10)
    updated = session.export().parameters["hidden.kernel"]
    np.testing.assert_allclose(found["update/hidden.kernel"], updated - before["hidden.kernel"], atol=1e-15)
    np.testing.assert_allclose(found["update/hidden.kernel"], -0.1 * found["gradient/hidden.kernel"], rtol=1e-9)


def test_only_kernels_decay_where_only_kernels_shall(monkeypatch: pytest.MonkeyPatch):
    rule = OptimizerSpec("sgd", learning_rate=1.0, weight_decay=0.5, decay_kernels_only=True)
    model = spec("resnet")
    session = jax_pairs.opened(monkeypatch, model, optimizer=rule)
    before = session.export().parameters
    found = session.inspect(jax_pairs.batches(model, 1)[0])
    for name, start in before.items():
        decay = 0.5 * start if name.endswith(".kernel") else 0.0
        np.testing.assert_allclose(found[f"update/{name}"], -found[f"gradient/{name}"] - decay, rtol=1e-9, atol=1e-12)


def test_a_twin_s_layer_runs_alone_too():
    session = twins.session("jax")
    found = twins.session("jax").inspect(twins.batches("digits-cnn", 1)[0])
    inputs = twins.batches("digits-cnn", 1)[0].images
    np.testing.assert_allclose(session.alone("conv", inputs, True), found["activation/conv"], rtol=1e-12)
    with pytest.raises(Refused, match=r"there is no layer 'cnov'; allowed: conv, pool, flatten, dense"):
        session.alone("cnov", inputs, True)
