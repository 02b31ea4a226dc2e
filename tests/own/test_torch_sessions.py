"""A session of a user's torch model uses the table's names and neutral layout, and trains as plain torch does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compare.base.interface import Array, Arrays, Batch, Refused
from compare.base.process_group import RankInfo
from compare.base.workloads import OptimizerSpec
from tests.own import torch_models
from tests.own import torch_pairs as pairs
from tests.parity import twins
from torchbackend.only.recorded_layers import RecordedLayer

PLAIN = OptimizerSpec("sgd", learning_rate=0.05)
SIZES = {"resnet": 9, "flattened": 8, "mixed": 9, "recurring": 9}
EVERY = pytest.mark.parametrize("factory", SIZES)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")


def batch(size: int, seed: int = 0, count: int = 4) -> Batch:
    random = np.random.default_rng(seed)
    images = random.normal(size=(count, size, size, 3)).astype(np.float32)
    return Batch(images, random.integers(0, 5, count).astype(np.int32))


def spec(factory: str) -> Any:
    return pairs.matched(pairs.model(factory, size=SIZES[factory]))


def by_hand(factory: str, start: Arrays, batches: list[Batch]) -> tuple[torch.nn.Module, list[float]]:
    """Return the user's model after plain torch has trained it from those neutral values, and the losses."""
    model = getattr(torch_models, factory)().double()
    model.load_state_dict({name: own(name, tensor, start) for name, tensor in model.state_dict().items()})
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    rule, losses = torch.optim.SGD(model.parameters(), PLAIN.learning_rate), []
    for each in batches:
        images = torch.from_numpy(each.images).double().permute(0, 3, 1, 2).contiguous()
        loss = F.cross_entropy(model(images), torch.from_numpy(each.labels).long())
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return model, losses


NEUTRAL = {"weight": ("kernel", "scale", "embedding"), "running_mean": ("mean",), "running_var": ("var",)}


def own(name: str, tensor: torch.Tensor, start: Arrays) -> torch.Tensor:
    """Return a neutral value as torch has it, written apart from the code under test."""
    path, _, attribute = name.rpartition(".")
    if name == "head.weight" and "prototypes.embedding" in start:
        return torch.from_numpy(start["prototypes.embedding"])
    if attribute == "gamma":
        return torch.from_numpy(start[f"{name}.gamma"]).reshape(tensor.shape)
    found = [start[f"{path}.{each}"] for each in NEUTRAL.get(attribute, (attribute,)) if f"{path}.{each}" in start]
    if not found:
        return tensor
    value = found[0]
    if name == "hidden.weight":
        value = np.einsum("hwco->chwo", value.reshape(4, 4, 4, -1)).reshape(value.shape)
    if value.ndim == 4:
        value = np.einsum("hwio->oihw", value)
    elif value.ndim == 2 and "embedding" not in "".join(key for key in start if key.startswith(path)):
        value = value.T
    return torch.from_numpy(np.ascontiguousarray(value))


@EVERY
def test_a_session_trains_as_the_users_own_loop(monkeypatch: pytest.MonkeyPatch, factory: str):
    opened, batches = (
        pairs.session(monkeypatch, spec(factory), optimizer=PLAIN),
        [batch(SIZES[factory], seed) for seed in (1, 2)],
    )
    start = opened.export()
    opened.feed(batches)
    opened.run(3)
    model, losses = by_hand(factory, start.parameters | start.buffers, [*batches, batches[0]])
    np.testing.assert_allclose(opened.losses(), losses, rtol=1e-12)
    end = opened.export()
    for name, tensor in model.state_dict().items():
        expected = own(name, tensor, end.parameters | end.buffers)
        np.testing.assert_allclose(tensor, expected, rtol=1e-9, atol=1e-12, err_msg=name)
    model.eval()
    images = torch.from_numpy(batches[0].images).double().permute(0, 3, 1, 2).contiguous()
    np.testing.assert_allclose(opened.logits(batches[0].images), model(images).detach(), rtol=1e-9)


@EVERY
def test_what_is_inspected_has_neutral_names_and_shapes(monkeypatch: pytest.MonkeyPatch, factory: str):
    described = spec(factory)
    opened, found = pairs.session(monkeypatch, described), pairs.traced(described, 4)
    internals = opened.inspect(batch(SIZES[factory]))
    for layer in found.layers:
        assert internals[f"activation/{layer.path}"].shape == layer.output
        assert internals[f"activation/{layer.path}.input"].shape == layer.input
    recorded = [key.removeprefix("activation/") for key in internals if key.startswith("activation/")]
    assert len(recorded) == 2 * len(found.layers)
    assert recorded[:2] == [f"{found.layers[0].path}.input", found.layers[0].path]
    for kind in ("gradient", "update"):
        assert {key for key in internals if key.startswith(kind)} == {
            f"{kind}/{name}" for name in opened.export().parameters
        }
    assert all(internals[f"update/{name}"].shape == opened.signature()[name] for name in opened.export().parameters)


def test_activations_are_recorded_before_what_changes_them_in_place(monkeypatch: pytest.MonkeyPatch):
    internals = pairs.session(monkeypatch, spec("resnet")).inspect(batch(9))
    assert internals["activation/layers.0.bn1"].min() < 0  # an in-place ReLU follows
    np.testing.assert_array_equal(
        internals["activation/layers.0.conv2.input"], np.maximum(internals["activation/layers.0.bn1"], 0)
    )


def test_what_a_layer_was_given_is_recorded_before_the_layer_changes_it(monkeypatch: pytest.MonkeyPatch):
    opened = pairs.session(monkeypatch, pairs.matched(pairs.model("unusual")))
    internals = opened.inspect(batch(8))
    assert internals["activation/changing.input"].min() < 0
    np.testing.assert_array_equal(internals["activation/changing.input"], internals["activation/cumulative"])


def test_layer_norm_over_whole_images_has_neutral_scales(monkeypatch: pytest.MonkeyPatch):
    opened = pairs.session(monkeypatch, pairs.matched(pairs.model("unusual")))
    assert opened.signature()["norm.scale"] == (8, 8, 4)
    values, internals = opened.export().parameters, opened.inspect(batch(8))
    given = internals["activation/norm.input"]
    axes = (1, 2, 3)
    centred = (given - given.mean(axes, keepdims=True)) / np.sqrt(given.var(axes, keepdims=True) + 1e-5)
    expected = centred * values["norm.scale"] + values["norm.bias"]
    np.testing.assert_allclose(internals["activation/norm"], expected, rtol=1e-10, atol=1e-12)


def test_an_average_of_all_batches_begins_anew(monkeypatch: pytest.MonkeyPatch):
    opened = pairs.session(monkeypatch, pairs.matched(pairs.model("unusual")))
    start = opened.export()
    for _ in range(2):
        opened.assign(start.parameters | start.buffers)
        internals = opened.inspect(batch(8))
        mean = internals["activation/cumulative.input"].mean((0, 1, 2))
        np.testing.assert_allclose(internals["buffer/cumulative.mean"], mean, rtol=1e-10)  # of one batch, its own


def test_what_torch_does_not_save_begins_anew_and_is_put_back_before_a_capture(monkeypatch: pytest.MonkeyPatch):
    opened: Any = pairs.session(monkeypatch, pairs.matched(pairs.model("remembering")))
    seen, start = opened._step.model.seen, opened.export().parameters
    opened.feed([batch(8)])
    opened.run(1)
    restore, then = opened._step.snapshot(), seen.clone()
    opened.run(3)
    assert not torch.equal(seen, then)
    restore()
    torch.testing.assert_close(seen, then, rtol=0, atol=0)
    opened.assign(start)
    torch.testing.assert_close(seen, torch.ones_like(seen), rtol=0, atol=0)


def test_a_convolution_of_one_pixel_crosses_as_the_dense_layer_it_is(monkeypatch: pytest.MonkeyPatch):
    described = pairs.matched(pairs.model("unusual"))
    table = described.arguments["names"]["torch"]
    kernel = next(each for each in table["variables"] if each["own"] == "patches.weight")
    kernel["shape"] = (3, 4)
    opened, given = pairs.session(monkeypatch, described), batch(8)
    assert opened.signature()["patches.kernel"] == (3, 4)
    values, internals = opened.export().parameters, opened.inspect(given)
    expected = given.images.astype(np.float64) @ values["patches.kernel"] + values["patches.bias"]
    np.testing.assert_allclose(internals["activation/patches"], expected, rtol=1e-10, atol=1e-12)
    assert internals["update/patches.kernel"].shape == (3, 4)


def test_a_flattened_input_is_recorded_height_first(monkeypatch: pytest.MonkeyPatch):
    internals = pairs.session(monkeypatch, spec("flattened")).inspect(batch(8))
    convolved = torch.from_numpy(internals["activation/conv"]).permute(0, 3, 1, 2)
    pooled = F.max_pool2d(F.gelu(convolved, approximate="tanh"), 2).permute(0, 2, 3, 1).flatten(1)
    np.testing.assert_array_equal(internals["activation/hidden.input"], pooled)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@EVERY
def test_a_layer_alone_does_as_it_does_in_the_model(monkeypatch: pytest.MonkeyPatch, factory: str, training: bool):
    """The recorded input of each layer, given to it alone, brings its recorded output, and leaves the state."""
    opened, given = pairs.session(monkeypatch, spec(factory)), batch(SIZES[factory])
    start = opened.export()
    values = start.parameters | start.buffers
    internals = opened.inspect(given)
    opened.assign(values)
    outputs = {
        layer: opened.run_layer(layer, whole(internals[f"activation/{layer}.input"]), training)
        for layer in (key.removeprefix("activation/") for key in internals)
        if f"activation/{layer}.input" in internals
    }
    for layer, output in outputs.items():
        assert output.dtype == np.float64
        same = np.allclose(output, internals[f"activation/{layer}"], rtol=1e-10, atol=1e-12)
        assert same == (training or f"{layer}.mean" not in values), layer
    after = opened.export()
    for name, array in (after.parameters | after.buffers).items():
        np.testing.assert_array_equal(array, values[name], err_msg=name)
    opened.feed([given])
    opened.run(1)  # still in training mode
    np.testing.assert_allclose(opened.losses(), [internals["loss"]], rtol=1e-12)


def test_a_layer_alone_stays_as_frozen_as_the_model_keeps_it():
    norm = torch.nn.BatchNorm2d(3).double().eval()
    inputs = torch.from_numpy(batch(4).images).double()
    for training in (True, False):
        np.testing.assert_allclose(RecordedLayer(norm).run(inputs, training=training), inputs, rtol=1e-5)
    found = RecordedLayer(norm.train()).run(inputs, training=True)
    np.testing.assert_allclose(found.mean((0, 1, 2)), 0, atol=1e-12)
    assert norm.training
    assert not norm.state_dict()["running_mean"].any()


def whole(inputs: Array) -> Array:
    return inputs.astype(np.int64) if inputs.ndim == 1 else inputs


def test_a_layer_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch):
    opened = pairs.session(monkeypatch, spec("flattened"))
    with pytest.raises(Refused, match="no layer 'dense' in this session; allowed: conv, hidden, out"):
        opened.run_layer("dense", np.zeros((1, 2)), False)


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{}, {"accumulate": 2}], ids=["whole", "accumulated"])
def test_compiled_steps_record_what_eager_steps_do(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]):
    """In-place ReLU, two calls of a layer and several micro-batches, through hooks that torch.compile has taken in."""
    described = pairs.matched(pairs.model("recurring", size=6))
    found = []
    for tuning in ("stock", "compiled"):
        opened = pairs.session(monkeypatch, described, tuning, **changes)
        found.append([opened.inspect(batch(6, seed)) for seed in (1, 2)])
        opened.feed([batch(6)])
        opened.run(1)
        assert opened.settings()["compile"] == (tuning == "compiled")
        assert opened.settings()["graph-breaks"] == 0
    for eager, compiled in zip(*found, strict=True):
        assert list(eager) == list(compiled)
        for name in eager:
            np.testing.assert_allclose(compiled[name], eager[name], rtol=1e-9, atol=1e-11, err_msg=name)


def test_mixed_precision_and_channels_last_are_read_back(monkeypatch: pytest.MonkeyPatch):
    opened = pairs.session(monkeypatch, spec("resnet"), "stock+channels-last", precision="bfloat16")
    opened.feed([batch(9)])
    opened.run(2)
    settings = opened.settings()
    assert (settings["compute_dtype"], settings["parameter_dtype"]) == ("bfloat16", "float32")
    assert settings["channels-last"]
    assert set(settings["layer_dtypes"]) == {layer.path for layer in pairs.traced(spec("resnet")).layers}
    assert np.isfinite(opened.losses()).all()


def test_a_view_of_images_in_the_other_memory_order_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Refused, match=r"channels-last: .*Use .reshape\(...\) instead"):
        pairs.session(monkeypatch, spec("flattened"), "stock+channels-last")


def test_the_same_start_brings_the_same_losses_again(monkeypatch: pytest.MonkeyPatch):
    opened = pairs.session(monkeypatch, spec("resnet"))
    start = opened.export()
    losses = []
    for _ in range(2):
        opened.assign(start.parameters | start.buffers)
        opened.feed([batch(9)])
        opened.run(3)
        losses.append(opened.losses())
    np.testing.assert_array_equal(*losses)


def test_a_layer_that_lowers_the_dtype_is_refused_at_float64(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Head(nn.Linear):\n"
        "    def forward(self, input):\n        return super().forward(input).float()\n\n"
        "def make():\n    return nn.Sequential(nn.Conv2d(3, 2, 8), nn.Flatten(), Head(2, 5))\n"
    )
    opened = pairs.session(monkeypatch, pairs.matched(pairs.model("make", file=file)))
    with pytest.raises(Refused, match="2 is float32 where float64 is asked"):
        opened.inspect(batch(8))


def test_a_batch_norm_over_all_devices_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\n\n"
        "def make():\n    model = nn.Sequential(nn.Conv2d(3, 5, 8), nn.BatchNorm2d(5), nn.Flatten())\n"
        "    return nn.SyncBatchNorm.convert_sync_batchnorm(model)\n"
    )
    own = pairs.matched(pairs.model("make", file=file))
    assert pairs.session(monkeypatch, own).signature()  # on one device it is a batch norm like others
    with pytest.raises(Refused, match=r"'1' is a torch\.nn\.SyncBatchNorm, .* allowed: torch\.nn\.BatchNorm2d"):
        pairs.session(monkeypatch, own, place=RankInfo(0, 2, 2))


def test_a_pair_without_a_table_or_with_another_models_is_refused(monkeypatch: pytest.MonkeyPatch):
    unmatched = pairs.model("resnet")
    with pytest.raises(Refused, match="the pair is yet to be matched"):
        pairs.session(monkeypatch, unmatched)
    foreign = replace(unmatched, arguments={**unmatched.arguments, "names": spec("mixed").arguments["names"]})
    with pytest.raises(Refused, match=r"the model has no 'grouped.weight', which the pair's table names"):
        pairs.session(monkeypatch, foreign)


def test_a_twins_layer_alone(monkeypatch: pytest.MonkeyPatch):
    opened = twins.session("torch")
    internals = opened.inspect(twins.batches("digits-cnn", 1)[0])
    opened = twins.session("torch")
    flat = internals["activation/flatten"]
    np.testing.assert_allclose(opened.run_layer("dense", flat, True), internals["activation/dense"], rtol=1e-10)
