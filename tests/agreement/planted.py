"""Planted bugs: small changes to one side's meaning, made through configuration and patches, never by copied code."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.nn import functional

import jaxbackend.layers
import jaxbackend.models.convnext
import jaxbackend.optim
import jaxbackend.precision
import torchbackend.layers
import torchbackend.models.convnext
import torchbackend.models.resnet
import torchbackend.models.staged
import torchbackend.optim
import torchbackend.step
from compare import recording, weights, workloads
from compare.agreement import certificate, referee
from compare.agreement.referee import Noise
from compare.data import Dataset, store, synthetic
from compare.interface import Arrays, Backend, Batch, RunSpec, Session
from compare.workloads import OptimizerSpec, Schedule, Workload
from tests.parity import twins

BATCH, CLASSES = 4, 5
STEPS, ULP_RUNS, NOISE_RUNS = 3, 5, 20
OFFSET = 30.0  # of images whose mean is far from 0, where variance formulas differ


def _probe(name: str, size: int, **changes: Any) -> Workload:
    """Return a real workload, narrow and on small images."""
    real = workloads.get(name)
    narrow: dict[str, Any] = {"resnet": {"depths": (1, 1), "widths": (4, 6)}, "convnext": {"depths": (1, 1)}}.get(
        real.model.family, {}
    )
    if real.model.family in ("staged", "convnext"):
        narrow["widths"] = (4, 6)
    model = replace(real.model, image=(size, size, real.model.image[2]), classes=CLASSES)
    return replace(real, model=replace(model, arguments={**model.arguments, **narrow}), **changes)


_SGD = workloads.get("cifar-cnn").optimizer

PROBES: dict[str, Workload] = {
    "digits-cnn": _probe("digits-cnn", 8),
    "cifar-cnn": _probe("cifar-cnn", 7),
    "cifar-cnn, heavy ball": _probe("cifar-cnn", 7, optimizer=replace(_SGD, nesterov=False)),
    "cifar-cnn, kernels decay": _probe(
        "cifar-cnn", 7, optimizer=replace(_SGD, weight_decay=0.01, decay_kernels_only=True)
    ),
    "cifar-resnet18, dark pixels": _probe("cifar-resnet18", 1),
    "cifar-resnet18": _probe("cifar-resnet18", 8),
    "resnet50": _probe("resnet50", 20),
    "convnext-tiny": _probe("convnext-tiny", 17),
    "digits-cnn, smoothed": _probe("digits-cnn", 8, label_smoothing=0.1),
    "digits-cnn, scheduled": _probe(
        "digits-cnn", 8, optimizer=OptimizerSpec("sgd", 0.05, schedule=Schedule("cosine", total=10))
    ),
}


@dataclass
class Side:
    """What one side is given; a planted bug changes it, or patches that side's code."""

    probe: str
    workload: Workload
    train: Batch
    test: Batch
    patch: pytest.MonkeyPatch
    seed: int = 3

    @classmethod
    def clean(cls, probe: str, patch: pytest.MonkeyPatch, seed: int = 3) -> "Side":
        """Return the side without a bug, with two and a half batches of images."""
        workload = PROBES[probe]
        train, test = synthetic.make(
            workload.model.image, classes=CLASSES, seed=seed, train=2 * BATCH + BATCH // 2, test=BATCH
        )
        if probe == "cifar-resnet18, dark pixels":
            train, test = (Batch(each.images - np.float32(OFFSET), each.labels) for each in (train, test))
        return cls(probe, workload, train, test, patch, seed)

    def optimizer(self, **changes: Any) -> None:
        """Change the update rule."""
        self.workload = replace(self.workload, optimizer=replace(self.workload.optimizer, **changes))

    def spec(self, backend: str, precision: str, folder: Path) -> RunSpec:
        """Write the data and return what the backend is told."""
        self.patch.setattr(workloads, "WORKLOADS", {self.workload.name: self.workload})
        file = folder / "data.safetensors"
        store.save(Dataset(self.train, self.test, ""), file)
        spec = twins.spec(backend, precision=precision, batch_size=BATCH, seed=self.seed, data=str(file))
        return replace(spec, workload=self.workload.name, image_size=None)

    def record(self, backend: str, precision: str, folder: Path) -> Arrays:
        """Return the record of this side."""
        return recording.record(twins.BACKENDS[backend], self.spec(backend, precision, folder), STEPS)


@dataclass(frozen=True)
class Bug:
    """One planted bug.

    Attributes:
        name: in words. side: the backend that has it. probe: the workload where it matters.
        plant: changes a side.
        first: how the certificate's first mismatch must begin.
        cause: a part of the likely cause that it must suggest.
        precision: whose gate must catch it; float64 stands for the semantic gate.
    """

    name: str
    side: str
    probe: str
    plant: Callable[[Side], None]
    first: str
    cause: str = ""
    precision: str = field(default="float64")


def _default(owner: type, name: str, value: Any) -> Callable[[Side], None]:
    return lambda side: side.patch.setitem(vars(owner)["__init__"].__kwdefaults__, name, value)


def _set(owner: Any, name: str, value: Any) -> Callable[[Side], None]:
    return lambda side: side.patch.setattr(owner, name, value)


def _rule(**changes: Any) -> Callable[[Side], None]:
    return lambda side: side.optimizer(**changes)


def _scale_images(side: Side) -> None:
    side.train = Batch(side.train.images * np.float32(1.001), side.train.labels)


def _batches(change: Callable[[list[Batch], Side], None]) -> Callable[[Side], None]:
    real = recording.epoch_batches

    def plant(side: Side) -> None:
        def changed(*arguments: Any, **options: Any) -> list[Batch]:
            batches = real(*arguments, **options)
            change(batches, side)
            return batches

        side.patch.setattr(recording, "epoch_batches", changed)

    return plant


def _keep_partial(batches: list[Batch], side: Side) -> None:
    batches.append(Batch(side.train.images[: BATCH // 2], side.train.labels[: BATCH // 2]))


def _shuffle_label(batches: list[Batch], side: Side) -> None:
    batches[0].labels[0] = (batches[0].labels[0] + 1) % CLASSES


def _move_buffer(side: Side) -> None:
    real = weights.randomised

    def changed(shapes: Any, seed: int) -> Arrays:
        arrays = real(shapes, seed)
        arrays["blocks.1.norm.var"][0] += 1e-6
        return arrays

    side.patch.setattr(weights, "randomised", changed)


def _same_padding(side: Side) -> None:
    side.patch.setattr(jaxbackend.layers, "_sides", lambda padding: "SAME" if padding else [(0, 0)] * 2)


def _same_pooling(side: Side) -> None:
    real = nnx.max_pool
    side.patch.setattr(nnx, "max_pool", lambda x, size, stride, _: real(x, size, stride, "SAME"))


def _shifted(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, count: function(first, count + 1)


def _uneven_smoothing(labels: Any, alpha: float) -> Any:
    return labels * (1 - alpha) + (1 - labels) * alpha / (labels.shape[-1] - 1)


def _fast_variance(wide: Any, mean: Any, axes: Any) -> Any:
    return jnp.square(wide).mean(axes) - jnp.square(mean)


def _summed(logits: Any, labels: Any, smoothing: float) -> Any:
    return functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")


J, T = jaxbackend, torchbackend
NORM = "step1/activation/blocks.0.norm "
UPDATE = "step1/update/blocks.0.conv.kernel "
BUGS = (
    Bug("batch-norm epsilon x 1.001", "torch", "cifar-cnn", _default(T.layers.BatchNorm, "epsilon", 1.001e-5), NORM),
    Bug("batch-norm epsilon x 1.001", "jax", "cifar-cnn", _default(J.layers.BatchNorm, "epsilon", 1.001e-5), NORM),
    Bug(
        "batch-norm momentum 0.99 for 0.9",
        "torch",
        "cifar-cnn",
        _default(T.layers.BatchNorm, "momentum", 0.01),
        "step1/buffer/blocks.0.norm.mean ",
        "only buffers differ",
    ),
    Bug(
        "biased running variance",
        "jax",
        "cifar-cnn",
        _set(J.layers, "_unbiased", lambda count: 1.0),
        "step1/buffer/blocks.0.norm.var ",
        "n/(n-1)",
    ),
    Bug(
        "variance by E[x^2] - E[x]^2",
        "jax",
        "cifar-resnet18, dark pixels",
        _set(J.layers, "_variance", _fast_variance),
        "step1/activation/stem.norm: the contender's",
        "more than rounding",
        precision="float32",
    ),
    Bug(
        "SAME for explicit padding at stride 2",
        "jax",
        "cifar-resnet18",
        _same_padding,
        "step1/activation/blocks.1.first.conv ",
        "padding",
    ),
    Bug("max-pool padding", "jax", "resnet50", _same_pooling, "step1/activation/pool ", "padding"),
    Bug(
        "stride on the 1x1 for the 3x3",
        "torch",
        "resnet50",
        _set(T.models.resnet, "_strides", lambda stride: (stride, 1)),
        "step1/activation/blocks.1.first.conv has shape",
    ),
    Bug(
        "flatten in channel order",
        "torch",
        "digits-cnn",
        _set(T.layers.Flatten, "forward", lambda self, x: x.flatten(1)),
        "step1/activation/flatten ",
    ),
    Bug(
        "GELU by tanh",
        "torch",
        "convnext-tiny",
        _set(T.models.convnext, "gelu", partial(functional.gelu, approximate="tanh")),
        "step1/activation/blocks.0.reduce ",
    ),
    Bug(
        "layer-norm epsilon 1e-5 for 1e-6",
        "torch",
        "convnext-tiny",
        _default(T.layers.LayerNorm, "epsilon", 1e-5),
        "step1/activation/stem_norm ",
    ),
    Bug(
        "weight decay coupled for decoupled",
        "torch",
        "convnext-tiny",
        _rule(decoupled=False),
        "step1/update/stem.kernel ",
        "gradients agree, updates do not",
    ),
    Bug(
        "decay of batch-norm parameters",
        "torch",
        "cifar-cnn, kernels decay",
        _rule(decay_kernels_only=False),
        "step1/update/blocks.0.norm.scale ",
        "gradients agree, updates do not",
    ),
    Bug("heavy ball for Nesterov", "jax", "cifar-cnn", _rule(nesterov=False), UPDATE, "updates do not"),
    Bug(
        "momentum dampening 0.1",
        "torch",
        "cifar-cnn, heavy ball",
        _set(torch.optim, "SGD", partial(torch.optim.SGD, dampening=0.1)),
        "step2/update/blocks.0.conv.kernel ",
        "momentum",
    ),
    Bug(
        "Adam epsilon inside the root",
        "jax",
        "digits-cnn",
        _set(J.optim, "_root", lambda moment, epsilon: jnp.sqrt(moment + epsilon)),
        "step1/update/conv.kernel ",
        "epsilon",
    ),
    Bug(
        "Adam bias correction one step ahead",
        "jax",
        "digits-cnn",
        _set(J.optim, "_total_weight", _shifted(J.optim._total_weight)),
        "step1/update/conv.kernel ",
    ),
    Bug("learning rate x (1 + 1e-6)", "torch", "cifar-cnn", _rule(learning_rate=0.05 * (1 + 1e-6)), UPDATE, "rate"),
    Bug(
        "learning rate x (1 + 1e-6)", "jax", "digits-cnn", _rule(learning_rate=1e-3 * (1 + 1e-6)), "step1/update/conv."
    ),
    Bug(
        "schedule one step ahead",
        "torch",
        "digits-cnn, scheduled",
        _set(T.optim, "learning_rate", _shifted(T.optim.learning_rate)),
        "step1/update/conv.kernel ",
    ),
    Bug(
        "label smoothing spread over the wrong classes only",
        "jax",
        "digits-cnn, smoothed",
        _set(optax, "smooth_labels", _uneven_smoothing),
        "step1/loss ",
    ),
    Bug(
        "loss summed for averaged",
        "torch",
        "digits-cnn",
        _set(T.step, "softmax_cross_entropy", _summed),
        "step1/loss ",
        "every gradient is scaled by 4",
    ),
    Bug(
        "last, partial batch kept",
        "torch",
        "digits-cnn",
        _batches(_keep_partial),
        "step3/activation/conv has shape [4, 8, 8, 32] in the baseline, [2, 8, 8, 32]",
    ),
    Bug(
        "loss scale not undone",
        "jax",
        "digits-cnn",
        _set(J.precision, "unscaled", lambda gradients, scaling: (gradients, jnp.bool_(True))),
        "step1/gradient/dense.bias: the contender's",
        "more than rounding",
        precision="float16",
    ),
    Bug(
        "evaluation with batch statistics",
        "torch",
        "cifar-cnn",
        _set(T.models.staged.StagedCNN, "eval", lambda self: self),
        "evaluation/logits ",
        "only evaluation differs",
    ),
    Bug("input normalisation x 1.001", "torch", "cifar-cnn", _scale_images, "step1/activation/blocks.0.conv "),
    Bug("one label shuffled", "jax", "digits-cnn", _batches(_shuffle_label), "step1/loss "),
    Bug(
        "bias missing",
        "torch",
        "digits-cnn",
        _default(T.layers.Conv, "bias", False),
        "initial/conv.bias is missing in the contender",
    ),
    Bug("initial value of one buffer", "torch", "cifar-cnn", _move_buffer, "initial/blocks.1.norm.var differs"),
)


class Reused:
    """A backend that opens each session once, so that many seeds compile once."""

    def __init__(self, backend: Backend) -> None:
        self.name, self.versions, self.out_of_memory = backend.name, backend.versions, backend.out_of_memory
        self._backend, self._opened = backend, list[tuple[object, Session]]()

    def open(self, spec: RunSpec) -> Session:
        """Return a session whose workload, precision and loss scale are the spec's."""
        key = (workloads.get(spec.workload), spec.precision, spec.loss_scale)
        if (opened := next((session for known, session in self._opened if known == key), None)) is None:
            opened = self._backend.open(spec)
            self._opened.append((key, opened))
        return opened


class Clean:
    """Records and noise floors without a bug, made once for each probe, backend, precision and seed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._backends = {name: Reused(backend) for name, backend in twins.BACKENDS.items()}
        self._made: dict[tuple[str, str, str, int], Arrays] = {}
        self._noise: dict[tuple[str, str, int], Noise] = {}

    def record(self, probe: str, backend: str, precision: str, seed: int = 3) -> Arrays:
        """Return one side's record."""
        key = (probe, backend, precision, seed)
        if key not in self._made:
            with pytest.MonkeyPatch.context() as patch:
                spec = Side.clean(probe, patch, seed).spec(backend, precision, self.folder)
                self._made[key] = recording.record(self._backends[backend], spec, STEPS)
        return self._made[key]

    def noise(self, probe: str, precision: str, seed: int = 3) -> Noise:
        """Return the noise floor of a precision."""
        key = (probe, precision, seed)
        if key not in self._noise:
            perturbations = [(referee.ULP64, ULP_RUNS)]
            if precision != "float64":
                perturbations.append((referee.ROUNDOFF[precision], NOISE_RUNS))
            with pytest.MonkeyPatch.context() as patch:
                spec = Side.clean(probe, patch, seed).spec("torch", "float64", self.folder)
                self._noise[key] = Noise(*recording.noise(self._backends["torch"], spec, STEPS, perturbations))
        return self._noise[key]

    def certificate(self, probe: str, precision: str, seed: int = 3) -> certificate.Certificate:
        """Return the certificate of two sides without a bug."""
        precisions = dict.fromkeys(("float64", "float32", precision))
        torch_side, jax_side = (
            {each: self.record(probe, backend, each, seed) for each in precisions} for backend in ("torch", "jax")
        )
        if precision == "float64":  # the noise of an ulp only forgives: measure it only where it is needed
            found = certificate.make(torch_side, jax_side, precision, Noise({}))
            if found.passed:
                return found
        return certificate.make(torch_side, jax_side, precision, self.noise(probe, precision, seed))


def certify(bug: Bug, clean: Clean) -> certificate.Certificate:
    """Return the certificate of a side with the bug (the contender) against the other side without it."""
    precisions = dict.fromkeys(("float64", "float32", bug.precision))
    other = "torch" if bug.side == "jax" else "jax"
    with pytest.MonkeyPatch.context() as patch:
        side = Side.clean(bug.probe, patch)
        bug.plant(side)
        planted = {precision: side.record(bug.side, precision, clean.folder) for precision in precisions}
    baseline = {precision: clean.record(bug.probe, other, precision) for precision in precisions}
    return certificate.make(baseline, planted, bug.precision, clean.noise(bug.probe, bug.precision))
