"""The example pairs: samestep tells whether both models are equal, and if not, where they differ."""

import importlib.util
import json
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compare import Request, pair
from tests.own import asked, inside

RESNETS = ("resnet_linen.py:model", "resnet_torch.py:model")
VGGS = ("vgg_linen.py:model", "vgg_torch.py:model")
CONVNEXTS = ("convnext_linen.py:model", "convnext_torch.py:model")
HOURGLASSES = ("hourglass_linen.py:model", "hourglass_torch.py:model")
ALLOW = ("--allow", "running-variance")


@dataclass(frozen=True)
class Example:
    """A pair and the right answer.

    Attributes:
        pair: references of the Flax and of the torch factory.
        code: the exit code.
        layer: what stands in the first mismatch, as a word of its own.
        says: words of the report, whatever their case.
        alone: the layers that do not compute the same even by themselves.
        image, arguments, options: as asked.
        case: at which batch and image size the certificate is made: 0 as asked, 1 the other.
    """

    pair: tuple[str, str]
    code: int = 0
    layer: str = ""
    says: tuple[str, ...] = ()
    image: str = "16x16x3"
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: tuple[str, ...] = ()
    case: int = 0
    alone: frozenset[str] = frozenset()


SHALLOW = {"depths": [1, 1]}  # a block of each stage: half of what is compiled
EXPLICIT = {"jax.padding": "explicit", **SHALLOW}
STRIDED = frozenset(("conv1", "layer2.0.conv1"))  # where SAME pads an even image otherwise than padding 1 does
SAME_PADDING = ("padding", "SAME", "padding=((1, 1), (1, 1))")
EXAMPLES = {
    "SAME against padding 1": Example(RESNETS, 1, "conv1", SAME_PADDING, "32x32x3", SHALLOW, alone=STRIDED),
    "SAME, where the asked size hides it": Example(RESNETS, 1, "conv1", SAME_PADDING, "33x33x3", options=ALLOW, case=1),
    "SAME, running variance allowed": Example(
        RESNETS, 1, "conv1", SAME_PADDING, "32x32x3", options=ALLOW, alone=STRIDED
    ),
    "SAME max-pool alone": Example(
        RESNETS, 1, "layer1.0.conv1", ("max-pool",), "32x32x3", {"jax.padding": "pool-same"}, ALLOW
    ),
    "explicit padding": Example(RESNETS, 1, "bn1", ("running variance", "n/(n-1)"), "32x32x3", EXPLICIT),
    "explicit padding, allowed": Example(RESNETS, 0, "", ("running-variance",), "32x32x3", EXPLICIT, ALLOW),
    "flatten order, linen": Example(("cnn_linen.py:model", "cnn_torch.py:model"), says=("dropout",)),
    "flatten order, nnx": Example(("cnn_nnx.py:model", "cnn_torch.py:model"), says=("dropout",)),
    "momentum": Example(VGGS, 1, "features.1", ("momentum", "0.99", "momentum=0.9")),
    "momentum made equal": Example(VGGS, 0, arguments={"jax.momentum": 0.9}, options=ALLOW),
    "momentum made equal, without biases": Example(
        VGGS, 0, arguments={"jax.momentum": 0.9, "bias": False}, options=ALLOW
    ),
    "GELU": Example(
        CONVNEXTS, 1, "layers.2.pwconv2", ("gelu(tanh)", "gelu(exact)", "approximate=False"), "32x32x3", SHALLOW
    ),
    "GELU made exact": Example(CONVNEXTS, 0, image="32x32x3", arguments={"jax.approximate": False}),
    "many kinds of layer": Example(HOURGLASSES, says=("dropout",)),
    "Flax's epsilon": Example(
        HOURGLASSES,
        1,
        "down.1",
        ("epsilon=1e-5", "eps=1e-6"),
        arguments={"jax.epsilon": 1e-6},
        alone=frozenset(("down.1", "middle.2", "norm")),
    ),
    "ResNet-50, a block of each stage": Example(
        ("resnet50_nnx.py:model", "resnet_torch.py:resnet50"),
        image="32x32x3",
        arguments={"width": 8, "classes": 10, "depths": [1, 1, 1, 1]},
    ),
}


# Other tests show the same in half the time.
THOROUGH = {
    "SAME, running variance allowed",
    "SAME max-pool alone",
    "explicit padding",
    "ResNet-50, a block of each stage",
    "Flax's epsilon",
    "SAME, where the asked size hides it",
    "flatten order, nnx",
    "momentum made equal",
    "momentum made equal, without biases",
    "GELU made exact",
    # tests/pairs/test_pairs.py has the same mistakes in one small model, and pastes the cures.
    "GELU",
    "momentum",
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.thorough) if each in THOROUGH else each for each in EXAMPLES]
)
def test_the_answer_is_right_and_names_the_layer(tmp_path: Path, name: str) -> None:
    _check(EXAMPLES[name], tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("package", "reference"),
    [("torchvision", "torchvision.models:resnet50"), ("timm", "timm.models.resnet:resnet50")],
)
def test_a_published_resnet50_is_ours(tmp_path: Path, package: str, reference: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    given = {"jax.classes": 10, "torch.num_classes": 10}
    _check(Example(("resnet50_nnx.py:model", reference), image="64x64x3", arguments=given), tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_160_layers_are_matched_and_certified_in_four_minutes_of_a_core(tmp_path: Path) -> None:
    pair = ["--jax", f"{asked.PAIRS}/resnet_linen.py:deep", "--torch", f"{asked.PAIRS}/resnet_torch.py:deep"]
    shape = ["--input", "64x64x3", "--classes", "10", "--device", "cpu", *ALLOW]
    before = _processor_seconds()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no program is there yet
        done = asked.run("agree", *pair, *shape, "--out", str(tmp_path))
    # Of all processes together: others may use the cores meanwhile.
    assert _processor_seconds() - before < 240
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert [each["name"] for each in result["contenders"]] == ["torch:stock", "jax:pieces"]
    assert result["agreement"]["status"] == "pass"


@pytest.mark.slow
def test_a_missing_layer_is_shown_where_the_two_sequences_part(tmp_path: Path) -> None:
    answer = asked.agree("vgg_linen.py:model", "vgg_torch.py:forgetful", tmp_path)
    assert (answer.code, answer.result) == (2, {})
    # Flax's fourth convolution has no partner, and torch goes on with its last.
    assert "Conv_3" in answer.error
    assert "features.11" in answer.error


@pytest.mark.slow
def test_the_printed_map_settles_the_same_match(tmp_path: Path) -> None:
    found = asked.names(*VGGS)
    assert found["features.0.weight"] == "params/Conv_0/kernel"
    assert found["features.11.running_var"] == "batch_stats/BatchNorm_3/var"
    assert found["classifier.bias"] == "params/Dense_0/bias"
    file = tmp_path / "names.json"
    file.write_text(json.dumps(found))
    assert asked.names(*VGGS, "--weights-map", str(file)) == found


def _check(example: Example, out: Path) -> None:
    options = [*asked.model_arguments(example.arguments), *example.options]
    answer = asked.agree(*example.pair, out, *options, image=example.image, case=example.case)
    assert answer.code == example.code, answer.text + answer.error
    words = answer.first_mismatch.replace("/", " ").replace(":", " ").split()
    if example.code:
        assert any(word == example.layer or word.startswith(f"{example.layer}.") for word in words), words
    else:
        assert not words
        (semantic,) = [gate for gate in answer.result["agreement"]["gates"] if gate["name"] == "semantic"]
        assert semantic["value"] < 1e-10
    assert answer.result["spec"]["pair"]["different_alone"].keys() == example.alone
    if example.options == ALLOW and not example.code:
        assert "running-variance" in answer.first_line
    missing = [each for each in example.says if each.casefold() not in answer.text.casefold()]
    assert not missing, answer.text


def _processor_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_training_starts_from_the_weights_of_the_side_asked_for(tmp_path: Path, side: str) -> None:
    vgg = pair(f"{asked.PAIRS}/vgg_linen.py:model", f"{asked.PAIRS}/vgg_torch.py:model", image="16x16x3", classes=10)
    found = inside.own_weights(vgg, Request(weights_from=side), tmp_path)
    # Flax starts from LeCun's normal numbers and biases of 0, torch from numbers uniform up to this limit.
    limit = (3 * 3 * 3) ** -0.5 + 1e-6
    assert (abs(found["features.0.kernel"]).max() > limit) == (side == "jax")
    assert (found["features.0.bias"] == 0).all() == (side == "jax")
