"""Models of torchvision and timm at 64x64, each with a right port and a wrong one. `make cases` runs them.

A model whose library is not installed is skipped.
"""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.own import asked

FLAX, TORCH = "tests/pairs/published_flax.py", "tests/pairs/published_torch.py"


@dataclass(frozen=True)
class Model:
    """A model's name in its library, a wrong port of it, and what the answer to that port says.

    Attributes:
        port: the factory of the flax side.
        name: its name in the library; "" for torchvision's vgg11_bn with a narrow head.
        mistake: the argument of the wrong port.
        words: the cause that the answer names.
        layer: the layer of the torch side that it names.
        code: the exit code of the wrong port.
        library: `torchvision` or `timm`.
        flax: the package of the flax side, "" for a port in this folder.
    """

    port: str
    name: str
    mistake: str
    words: str
    layer: str
    code: int = 1
    library: str = "torchvision"
    flax: str = ""


_ORDER = "same channels on both sides in another order"
# Written down before the first run.
MODELS = (
    Model("squeezenet", "squeezenet1_1", "order", _ORDER, "features.4.squeeze"),
    Model("mobilenet_v2", "mobilenet_v2", "relu", "relu6", "features.1.conv.0.0"),
    Model("mobilenet_v3", "mobilenet_v3_small", "gate", "hardsigmoid", "features.1.block.2.0"),
    Model("resnet18", "resnet18", "pool", "max-pool", "layer1.0.conv1"),
    Model("vgg", "", "momentum", "the same number was copied", "features.1"),
    Model("efficientnet_b0", "efficientnet_b0", "act", "silu", "features.1.0.block.1.fc2"),
    Model("regnet_y", "regnet_y_400mf", "groups", "kernel", "trunk_output.block1.block1-0.f.b.0", 2),
    Model("densenet121", "densenet121", "order", _ORDER, "features.denseblock1.denselayer2.norm1"),
    Model("convnext_tiny", "convnext_tiny", "gelu", "approximate=False", "features.1.0.block.5"),
    Model(
        *("vit_small", "vit_small_patch16_224", "scale"),
        *("torch multiplies by 0.125, flax by 0.051031", "blocks.0.attn.proj"),
        library="timm",
    ),
    Model("resnet50", "resnet50", "stride", "stride", "layer2.0.conv1"),
    Model("flaim_convnext", "convnext_atto", "scale", "stages.0.blocks.0.gamma", "gamma", 2, "timm", "flaim"),
)


def ask(model: Model, mistake: str, out: Path) -> asked.Answer:
    """Run `samestep agree` on a port."""
    factory = "images" if model.library == "timm" else "vision" if model.name else "small_vgg"
    arguments = [f"jax.mistake={mistake}"] if mistake else []
    arguments += [f"torch.name={model.name}"] if model.name else []
    arguments += ["torch.img_size=64"] if model.name.startswith("vit") else []
    options = [part for each in arguments for part in ("--model-args", each)]
    return asked.agree(
        f"{FLAX}:{model.port}",
        f"{TORCH}:{factory}",
        out,
        *asked.QUICK,
        *options,
        "--allow",
        "running-variance",
        "--batch-size",
        "4",
        image="64x64x3",
    )


@pytest.mark.thorough
@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.port)
def test_a_port_of_a_published_model_gets_its_answer(model: Model, is_right: bool, tmp_path: Path) -> None:
    try:
        importlib.import_module(model.library)
        if model.flax and importlib.util.find_spec(model.flax) is None:
            pytest.skip(f"{model.flax} is not installed")
    except (ImportError, RuntimeError) as error:  # torchvision for another torch raises a RuntimeError
        pytest.skip(f"{model.library} cannot be imported here: {error}")
    answer = ask(model, "" if is_right else model.mistake, tmp_path)
    assert answer.code == (0 if is_right else model.code), answer.text + answer.error
    if not is_right:
        for words in (model.words, model.layer):
            assert words in answer.text + answer.error
