"""Workloads: model, data, loss and optimizer, described without any framework.

A workload is data only, and one description drives both twins. Each backend's `models` folder builds the model that
`ModelSpec` names. Its `optim.py` builds the optimizer.

To add a workload, add an entry to `_ALL`. If no family fits its model, add a file to `models` in both backends, too.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compare.base.errors import Refused, suggest
from compare.base.task import Input, Task

PAIR = "pair"
"""The family of a user's own models (`compare.user_models`)."""

LONGEST_NAME = 200
_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9:=+#._,-]{{0,{LONGEST_NAME - 1}}}")  # as result.schema.json has it

BLOCKS: Mapping[str, tuple[str, ...]] = {
    "staged": ("blocks",),
    "resnet": ("blocks",),
    "convnext": ("blocks",),
    "vgg": ("stages",),
    "mobilenet": ("blocks",),
    "unet": ("down", "up"),
}
"""By family, the attributes of both twins that list a model's blocks. `rematerialisation` recomputes each block.

`simple` has none. Recomputing its only convolution would free nothing, because its output is needed again at once.
"""

WITH_BATCH_NORM = ("staged", "resnet", "mobilenet", "unet")
"""The families with batch norm. Several devices exchange its moments if it is synchronised."""


@dataclass(frozen=True)
class ModelSpec:
    """A model.

    Attributes:
        family: names a file in each backend's `models`; `pair` for a user's own models.
        image: (height, width, channels) of one input.
        classes: number of outputs.
        arguments: keyword arguments of the model. A `pair` has these instead: `jax` and `torch`, the references of the
            factories; `arguments`, the factories' arguments by backend; `names`, the JSON of
            `compare.base.names.Names` by backend, once known; `allow`, the accepted differences
            (`compare.agreement.allowances`); `losses`, the references of the user's own loss functions by backend.
        inputs: the inputs of a pair that does not take one image. They lie in one row, and `image` is its shape.
        pruned: how a narrower model was cut from a built-in one (`compare.data.pruning.prune`): the `arguments` of the
            full model, `ratio`, `round_to` and `score`. It is empty for a model that is not pruned.
    """

    family: str
    image: tuple[int, int, int]
    classes: int
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: tuple[Input, ...] = ()
    pruned: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def pixels(self) -> int:
        """The pixels of an image, or about as many values of other inputs."""
        height, width, channels = self.image
        return max(1, channels // 3) if self.inputs else height * width

    def resized(self, size: int | None) -> "ModelSpec":
        """Return the same model for square images of `size` pixels (unchanged if None, or without an image)."""
        return self if size is None or self.inputs else replace(self, image=(size, size, self.image[2]))


@dataclass(frozen=True)
class Schedule:
    """The factor on the learning rate at each step, counted from 0. `name` is the rule.

    - `constant` is 1.
    - `step` multiplies by `factor` at each of the `milestones`.
    - `cosine` is half a cosine wave, from 1 at the end of warm-up to 0 at `total` steps (Loshchilov and Hutter 2017,
      without restarts).

    In the first `warmup` steps the factor is also multiplied by (step + 1) / warmup (Goyal et al. 2017).

    A learning rate that is not constant is rounded to float32 in every precision. torch's fused updates read it from
    the device's memory in that dtype.
    """

    name: str = "constant"
    warmup: int = 0
    total: int = 0
    milestones: tuple[int, ...] = ()
    factor: float = 0.1

    @property
    def is_constant(self) -> bool:
        """Return whether every step has the same learning rate."""
        return self.name == "constant" and not self.warmup

    @property
    def turns(self) -> tuple[int, ...]:
        """Return the first step, the steps around each change of the rule, and the middle of the wave."""
        points = [self.warmup, *self.milestones] + ([self.total] if self.name == "cosine" else [])
        middle = [(self.warmup + self.total) // 2] if self.name == "cosine" else []
        return tuple(sorted({0, *points, *middle, *(point - 1 for point in points if point)}))


@dataclass(frozen=True)
class OptimizerSpec:
    """An update rule in torch's convention.

    `name` is `sgd` or `adam`.

    `sgd`: buffer = momentum * buffer + gradient, without dampening. The first buffer is the gradient. With nesterov,
    step = gradient + momentum * buffer, else step = buffer (torch.optim.SGD; Sutskever et al. 2013 in torch's form).
    `adam`: Kingma and Ba 2015, with `betas` for the moments and `epsilon` outside the square root (torch.optim.Adam,
    optax.adam with eps_root=0).

    `weight_decay` times the parameter is added to the gradient. With `decoupled` (adam only) it is added to the step
    (AdamW, Loshchilov and Hutter 2019). With `decay_kernels_only` only kernels decay.

    `clip_norm` limits the common Euclidean norm of all gradients first. They are multiplied by
    min(1, clip_norm / (norm + 1e-6)) (torch.nn.utils.clip_grad_norm_; Pascanu et al. 2013).

    Raises:
        ValueError: the rule decouples decay and is not adam, or has Nesterov's step and no momentum.
    """

    name: str
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    decay_kernels_only: bool = False
    clip_norm: float | None = None
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        """Refuse combinations that frameworks understand differently."""
        if self.decoupled and self.name != "adam":
            raise ValueError(f"decoupled weight decay is defined for adam, not for {self.name}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")

    def decays(self, name: str) -> bool:
        """Return whether weight decay applies to the parameter of that neutral name."""
        return not self.decay_kernels_only or name.rpartition(".")[2] == "kernel"

    def slowed(self, part: float) -> "OptimizerSpec":
        """Return the rule with its learning rate times `part`.

        Only SGD changes. Steps of Adam do not grow with the gradient.
        """
        return replace(self, learning_rate=part * self.learning_rate) if self.name == "sgd" else self


@dataclass(frozen=True)
class Workload:
    """A model, its data, its loss and its optimizer.

    Attributes:
        name: as in `--workload`.
        summary: one line for `samestep workloads`.
        model: the model, which both backends build alike.
        optimizer: the update rule, with its schedule.
        data: a source of `compare.data.datasets`: `digits`, `mnist`, `cifar10`, `photographs`, `shapes`, `synthetic`.
        batch_size: images per step, unless `--batch-size` says otherwise.
        epochs: passes over the training set, unless `--epochs` says otherwise.
        label_smoothing: is spread evenly over all classes, the true one included (Szegedy et al. 2016).
        task: the outputs and losses of a user's pair; None for images and their classes.

    Raises:
        Refused: no result may have that name.
    """

    name: str
    summary: str
    model: ModelSpec
    optimizer: OptimizerSpec
    data: str
    batch_size: int
    epochs: int
    label_smoothing: float = 0.0
    task: Task | None = None

    def __post_init__(self) -> None:
        """Refuse a name early that the finished result could not have."""
        if not _NAME.fullmatch(str(self.name)):
            allowed = f"a letter, then letters, digits and :=+#._,-, at most {LONGEST_NAME} together"
            raise Refused(f"workload name {self.name!r} is not allowed; allowed: {allowed}")


# Expansion, channels, blocks and first stride of each stage (Sandler et al. 2018, table 2).
_INVERTED_RESIDUALS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_ADAM = OptimizerSpec("adam", learning_rate=1e-3)

_ALL = (
    Workload(
        name="digits-cnn",
        summary="the classic Keras tutorial CNN on scikit-learn's 8x8 handwritten digits, Adam",
        model=ModelSpec("simple", (8, 8, 1), 10, {"features": 32}),
        optimizer=_ADAM,
        data="digits",
        batch_size=64,
        epochs=30,
    ),
    Workload(
        name="mnist-cnn",
        summary="the same CNN on 28x28 MNIST from a local folder (--data DIR), Adam",
        model=ModelSpec("simple", (28, 28, 1), 10, {"features": 32}),
        optimizer=_ADAM,
        data="mnist",
        batch_size=64,
        epochs=5,
    ),
    Workload(
        name="cifar-cnn",
        summary="six 3x3 convolutions with batch norm on CIFAR-10 (--data DIR) or synthetic 32x32 images, SGD Nesterov",
        model=ModelSpec("staged", (32, 32, 3), 10, {"widths": (32, 64, 128)}),
        optimizer=OptimizerSpec("sgd", learning_rate=0.05, momentum=0.9, nesterov=True),
        data="cifar10",
        batch_size=512,
        epochs=4,
    ),
    Workload(
        name="cifar-resnet18",
        summary="ResNet-18 with a 3x3 stem on CIFAR-10 (--data DIR) or synthetic 32x32 images, SGD Nesterov",
        model=ModelSpec(
            "resnet",
            (32, 32, 3),
            10,
            {"block": "basic", "depths": (2, 2, 2, 2), "widths": (64, 128, 256, 512), "stem": "cifar"},
        ),
        optimizer=OptimizerSpec("sgd", learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
        data="cifar10",
        batch_size=512,
        epochs=4,
    ),
    Workload(
        name="resnet50",
        summary="ResNet-50 v1.5 on photographs (--data DIR) or synthetic images, SGD Nesterov, label smoothing",
        model=ModelSpec(
            "resnet",
            (224, 224, 3),
            1000,
            {"block": "bottleneck", "depths": (3, 4, 6, 3), "widths": (64, 128, 256, 512), "stem": "imagenet"},
        ),
        optimizer=OptimizerSpec(
            "sgd", learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=5e-5, decay_kernels_only=True
        ),
        data="photographs",
        batch_size=256,
        epochs=1,
        label_smoothing=0.1,
    ),
    Workload(
        name="convnext-tiny",
        summary="ConvNeXt-T on photographs (--data DIR) or synthetic images, AdamW with warm-up, label smoothing",
        model=ModelSpec("convnext", (224, 224, 3), 1000, {"depths": (3, 3, 9, 3), "widths": (96, 192, 384, 768)}),
        optimizer=OptimizerSpec(
            "adam",
            learning_rate=1e-3,
            weight_decay=0.05,
            decoupled=True,
            decay_kernels_only=True,
            schedule=Schedule("cosine", warmup=20, total=1000),
        ),
        data="photographs",
        batch_size=128,
        epochs=1,
        label_smoothing=0.1,
    ),
    Workload(
        name="vgg16",
        summary="VGG-16 without batch norm on photographs (--data DIR) or synthetic images, SGD with momentum",
        model=ModelSpec(
            "vgg",
            (224, 224, 3),
            1000,
            {"depths": (2, 2, 3, 3, 3), "widths": (64, 128, 256, 512, 512), "hidden": (4096, 4096)},
        ),
        optimizer=OptimizerSpec("sgd", learning_rate=0.01, momentum=0.9, weight_decay=5e-4),
        data="photographs",
        batch_size=128,
        epochs=1,
    ),
    Workload(
        name="mobilenet-v2",
        summary="MobileNetV2 on photographs (--data DIR) or synthetic images, SGD with momentum, warm-up and cosine",
        model=ModelSpec("mobilenet", (224, 224, 3), 1000, {"stem": 32, "stages": _INVERTED_RESIDUALS, "head": 1280}),
        optimizer=OptimizerSpec(
            "sgd",
            learning_rate=0.045,
            momentum=0.9,
            weight_decay=4e-5,
            schedule=Schedule("cosine", warmup=20, total=1000),
        ),
        data="photographs",
        batch_size=256,
        epochs=1,
    ),
    Workload(
        name="unet",
        summary="U-Net with batch norm, a class for every pixel of synthetic 256x256 shapes, SGD, gradients clipped",
        model=ModelSpec("unet", (256, 256, 3), 5, {"widths": (64, 128, 256, 512, 1024)}),
        optimizer=OptimizerSpec("sgd", learning_rate=0.1, momentum=0.9, clip_norm=1.0),
        data="shapes",
        batch_size=16,
        epochs=4,
    ),
)

WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in _ALL}


def get(name: str, more: Iterable[str] = ()) -> Workload:
    """Return the built-in workload of that name.

    Raises:
        Refused: the name is unknown. The message lists all that exist, and `more`.
    """
    try:
        return WORKLOADS[name]
    except KeyError:
        names = [*WORKLOADS, *more]
        allowed = ", ".join(names)
        raise Refused(f"unknown workload {name!r}; {suggest(name, names)}allowed: {allowed}") from None


def is_built_in(workload: Workload) -> bool:
    """Return whether this is a built-in workload, unchanged."""
    return WORKLOADS.get(workload.name) == workload


def list_blocks(model: ModelSpec) -> tuple[str, ...]:
    """Return the attributes of a model's twins that list its blocks (`BLOCKS`).

    Raises:
        Refused: the model has none, so the knob `rematerialisation` has nothing to recompute.
    """
    if model.family in BLOCKS:
        return BLOCKS[model.family]
    why = "its blocks are not known" if model.family == PAIR else "it is one block as a whole"
    whose = "a model of your own" if model.family == PAIR else "this workload's model"
    having = (name for name, workload in WORKLOADS.items() if workload.model.family in BLOCKS)
    raise Refused(f"rematerialisation of {whose}: {why}; allowed: the workloads {', '.join(having)}")
