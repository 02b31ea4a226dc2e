"""Widths, scores and counts of pruned models, without a framework."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare.base import workloads
from compare.base.errors import Refused
from compare.base.workloads import ModelSpec
from compare.data import pruning
from compare.settings import plan
from compare.settings.options import Settings

# As published: parameters (torchvision, pytorch-cifar, Pytorch-UNet) and multiplications of a forward pass.
PUBLISHED = {
    "digits-cnn": (5_450, 64 * 9 * 32 + 512 * 10),
    "cifar-resnet18": (11_173_962, 555_422_720),
    "resnet50": (25_557_032, 4_089_184_256),
    "convnext-tiny": (28_589_128, 4_455_531_264),
    "vgg16": (138_357_544, 15_470_264_320),
    "mobilenet-v2": (3_504_872, 300_774_272),
    "unet": (31_037_893, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_of_the_full_models_are_the_published_ones(name: str):
    model, (parameters, operations) = workloads.get(name).model, PUBLISHED[name]
    assert pruning.count_parameters(model) == parameters
    assert operations in (None, pruning.count_operations(model))


def count_resnet18(widths: tuple[int, ...]) -> int:
    """Count the multiplications of cifar-resnet18 by hand: 32, 16, 8 and 4 pixels wide, two blocks a stage."""
    total, inputs = 32 * 32 * 9 * 3 * widths[0], widths[0]
    for stage, width in enumerate(widths):
        pixels = (32 >> stage) ** 2
        total += pixels * 9 * (inputs * width + 3 * width * width) + (pixels * inputs * width if stage else 0)
        inputs = width
    return total + inputs * 10


def count_resnet50(widths: tuple[int, ...], outer: tuple[int, ...]) -> int:
    """Count the multiplications of resnet50 by hand: stages of 3, 4, 6 and 3 bottlenecks, stride on the 3x3."""
    total, inputs, size = 112 * 112 * 49 * 3 * widths[0], widths[0], 56
    for stage, (blocks, width, outputs) in enumerate(zip((3, 4, 6, 3), widths, outer, strict=True)):
        before, size = size, size // 2 if stage else size
        for block in range(blocks):
            total += (size if block else before) ** 2 * inputs * width + size**2 * (9 * width * width + width * outputs)
            total += 0 if block else size**2 * inputs * outputs
            inputs = outputs
    return total + inputs * 1000


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
def test_operations_of_pruned_models_are_those_counted_by_hand(ratio: float):
    def widths(*full: int) -> tuple[int, ...]:
        return tuple(round(width * (1 - ratio)) for width in full)  # all are multiples of 8

    small = pruning.prune(workloads.get("cifar-resnet18").model, ratio, 8, "kernels")
    assert pruning.count_operations(small) == count_resnet18(widths(64, 128, 256, 512))
    large = pruning.prune(workloads.get("resnet50").model, ratio, 8, "kernels")
    expected = count_resnet50(widths(64, 128, 256, 512), widths(256, 512, 1024, 2048))
    assert pruning.count_operations(large) == expected


def test_widths_are_rounded_to_the_multiple():
    model = ModelSpec("staged", (32, 32, 3), 10, {"widths": (30, 60)})
    assert pruning.prune(model, 0.5, 8, "kernels").arguments["widths"] == (16, 32)
    assert pruning.prune(model, 0.5, 1, "kernels").arguments["widths"] == (15, 30)
    assert pruning.prune(model, 0.99, 8, "kernels").arguments["widths"] == (8, 8)


def test_the_channels_with_the_largest_score_stay_and_the_lower_index_wins_a_tie():
    model = pruning.prune(ModelSpec("simple", (8, 8, 1), 10, {"features": 4}), 0.5, 1, "kernels")
    kernel = np.zeros((3, 3, 1, 4))
    kernel[0, 0, 0] = [1, -2, 1, 1]
    values = {"conv.kernel": kernel, "conv.bias": np.arange(4.0), "dense.kernel": np.arange(640.0).reshape(64, 10)}
    kept = pruning.choose_channels(model, values)
    assert kept["conv"].tolist() == [0, 1]
    cut = pruning.cut(model, values, kept)
    assert cut["conv.bias"].tolist() == [0, 1]
    assert cut["dense.kernel"][:, 0].tolist() == [40 * pixel + 10 * kept for pixel in range(16) for kept in (0, 1)]


def test_layers_that_a_sum_joins_share_their_score():
    full = workloads.get("cifar-resnet18").model
    groups = [layer.outputs.name for layer in pruning.layers(full) if layer.path in ("stem.conv", "blocks.1.last.conv")]
    assert groups == ["stem", "stem"]


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("round_to", [1, 4, 8, 16])
def test_neighbours_of_mobilenet_keep_different_widths(ratio: float, round_to: int):
    full = workloads.get("mobilenet-v2").model
    model = pruning.prune(full, ratio, round_to, "kernels")
    assert pruning.count_operations(model) < pruning.count_operations(full)
    if (ratio, round_to) == (0.75, 8):  # the stem would have 8 channels, as the stage after it
        assert (model.arguments["stem"], model.arguments["stages"][0][1]) == (16, 8)


def test_a_narrow_model_with_other_sums_is_refused():
    with pytest.raises(Refused, match="smaller ratio"):
        pruning.prune(workloads.get("resnet50").model, 0.98, 8, "kernels")
    with pytest.raises(Refused, match="--prune"):
        pruning.prune(ModelSpec("pair", (8, 8, 1), 10), 0.5, 8, "kernels")


def test_masked_channels_are_never_written():
    model = pruning.prune(ModelSpec("simple", (8, 8, 1), 10, {"features": 4}), 0.5, 1, "kernels")
    shapes = {"conv.kernel": (3, 3, 1, 4), "conv.bias": (4,), "dense.kernel": (64, 10), "dense.bias": (10,)}
    values = {name: np.ones(shape) for name, shape in shapes.items()}
    masked = pruning.mask(model, values, {"conv": np.array([1, 3])})
    assert masked["conv.bias"].tolist() == [0, 1, 0, 1]
    assert masked["conv.kernel"].sum() == 18
    assert math.prod(masked["dense.kernel"].shape) == masked["dense.kernel"].sum()


@pytest.mark.parametrize("changes", [{}, {"prune": 0.5, "task": "infer"}])
def test_fine_tuning_needs_a_pruned_model_that_trains(changes: dict[str, Any]):
    with pytest.raises(Refused, match="--finetune-epochs 1 needs --prune and --task train"):
        plan.resolve(Settings(device="cpu", finetune_epochs=1, **changes))


@pytest.mark.parametrize("changes", [{"round_to": 4}, {"prune_by": "batch-norm"}])
def test_how_to_prune_is_refused_where_nothing_is_pruned(changes: dict[str, Any]):
    with pytest.raises(Refused, match="--round-to and --prune-by need --prune"):
        plan.resolve(Settings(device="cpu", workload="cifar-resnet18", **changes))


def test_a_fine_tuned_model_trains_for_its_own_epochs(tmp_path: Path):
    settings = Settings(device="cpu", prune=0.5, epochs=4, finetune_epochs=1, out=tmp_path)
    made = plan.make(settings)
    contender = made.contenders[0]
    assert made.spec(contender, tmp_path).epochs == 1
    assert made.spec(contender, tmp_path, epochs=made.epochs).epochs == 4
