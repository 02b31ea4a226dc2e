"""The bugs that the certificate must catch: name, side, workload where it matters, and the tensor to be named first."""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import optax
import torch
from torch.nn import functional

import jaxbackend.layers
import jaxbackend.optim
import jaxbackend.precision
import torchbackend.layers
import torchbackend.models.convnext
import torchbackend.models.resnet
import torchbackend.models.staged
import torchbackend.optim
import torchbackend.step
from tests.planted import plants
from tests.planted.plants import Plant, attribute, default, rule


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
    plant: Plant
    first: str
    cause: str = ""
    precision: str = "float64"


J, T = jaxbackend, torchbackend
NORM = "step1/activation/blocks.0.norm "
UPDATE = "step1/update/blocks.0.conv.kernel "
BUGS = (
    Bug(
        "batch-norm epsilon x 1.001",
        "torch",
        "cifar-cnn",
        default(T.layers.BatchNorm, "epsilon", 1.001e-5),
        NORM,
    ),
    Bug("batch-norm epsilon x 1.001", "jax", "cifar-cnn", default(J.layers.BatchNorm, "epsilon", 1.001e-5), NORM),
    Bug(
        "batch-norm momentum 0.99 for 0.9",
        "torch",
        "cifar-cnn",
        default(T.layers.BatchNorm, "momentum", 0.01),
        "step1/buffer/blocks.0.norm.mean ",
        "only buffers differ",
    ),
    Bug(
        "biased running variance",
        "jax",
        "cifar-cnn",
        attribute(J.layers, "_unbiased", lambda count: 1.0),
        "step1/buffer/blocks.0.norm.var ",
        "n/(n-1)",
    ),
    Bug(
        "variance by E[x^2] - E[x]^2",
        "jax",
        "cifar-resnet18, dark pixels",
        attribute(J.layers, "_moments", plants.fast_moments),
        "step1/activation/stem.norm: the contender's",
        "more than rounding",
        precision="float32",
    ),
    Bug(
        "SAME for explicit padding at stride 2",
        "jax",
        "cifar-resnet18",
        plants.same_padding,
        "step1/activation/blocks.1.first.conv ",
        "padding",
    ),
    Bug("max-pool padding", "jax", "resnet50", plants.same_pooling, "step1/activation/pool ", "padding"),
    Bug(
        "stride on the 1x1 for the 3x3",
        "torch",
        "resnet50",
        attribute(T.models.resnet, "_strides", lambda stride: (stride, 1)),
        "step1/activation/blocks.1.first.conv has shape",
    ),
    Bug(
        "flatten in channel order",
        "torch",
        "digits-cnn",
        attribute(T.layers.Flatten, "forward", lambda self, x: x.flatten(1)),
        "step1/activation/flatten ",
    ),
    Bug(
        "GELU by tanh",
        "torch",
        "convnext-tiny",
        attribute(T.models.convnext, "gelu", partial(functional.gelu, approximate="tanh")),
        "step1/activation/blocks.0.reduce ",
    ),
    Bug(
        "layer-norm epsilon 1e-5 for 1e-6",
        "torch",
        "convnext-tiny",
        default(T.layers.LayerNorm, "epsilon", 1e-5),
        "step1/activation/stem_norm ",
    ),
    Bug(
        "weight decay coupled for decoupled",
        "torch",
        "convnext-tiny",
        rule(decoupled=False),
        "step1/update/stem.kernel ",
        "gradients agree, updates do not",
    ),
    Bug(
        "decay of batch-norm parameters",
        "torch",
        "cifar-cnn, kernels decay",
        rule(decay_kernels_only=False),
        "step1/update/blocks.0.norm.scale ",
        "gradients agree, updates do not",
    ),
    Bug("heavy ball for Nesterov", "jax", "cifar-cnn", rule(nesterov=False), UPDATE, "updates do not"),
    Bug(
        "momentum dampening 0.1",
        "torch",
        "cifar-cnn, heavy ball",
        attribute(torch.optim, "SGD", partial(torch.optim.SGD, dampening=0.1)),
        "step2/update/blocks.0.conv.kernel ",
        "momentum",
    ),
    Bug(
        "Adam epsilon inside the root",
        "jax",
        "digits-cnn",
        attribute(J.optim, "_root", lambda moment, epsilon: jnp.sqrt(moment + epsilon)),
        "step1/update/conv.kernel ",
        "epsilon",
    ),
    Bug(
        "Adam bias correction one step ahead",
        "jax",
        "digits-cnn",
        attribute(J.optim, "_total_weight", plants.shifted(J.optim._total_weight)),
        "step1/update/conv.kernel ",
    ),
    Bug("learning rate x (1 + 1e-6)", "torch", "cifar-cnn", rule(learning_rate=0.05 * (1 + 1e-6)), UPDATE, "rate"),
    Bug(
        "learning rate x (1 + 1e-6)",
        "jax",
        "digits-cnn",
        rule(learning_rate=1e-3 * (1 + 1e-6)),
        "step1/update/conv.",
    ),
    Bug(
        "schedule one step ahead",
        "torch",
        "digits-cnn, scheduled",
        attribute(T.optim, "learning_rate", plants.shifted(T.optim.learning_rate)),
        "step1/update/conv.kernel ",
    ),
    Bug(
        "label smoothing spread over the wrong classes only",
        "jax",
        "digits-cnn, smoothed",
        attribute(optax, "smooth_labels", plants.uneven_smoothing),
        "step1/loss ",
    ),
    Bug(
        "loss summed for averaged",
        "torch",
        "digits-cnn",
        attribute(T.step, "softmax_cross_entropy", plants.summed),
        "step1/loss ",
        "every gradient is scaled by 4",
    ),
    Bug(
        "last, partial batch kept",
        "torch",
        "digits-cnn",
        plants.batches(plants.keep_partial),
        "step3/activation/conv has shape [4, 8, 8, 32] in the baseline, [2, 8, 8, 32]",
    ),
    Bug(
        "loss scale not undone",
        "jax",
        "digits-cnn",
        attribute(J.precision, "unscaled", lambda gradients, scaling: (gradients, jnp.bool_(True))),
        "step1/gradient/dense.bias: the contender's",
        "more than rounding",
        precision="float16",
    ),
    Bug(
        "evaluation with batch statistics",
        "torch",
        "cifar-cnn",
        attribute(T.models.staged.StagedCNN, "eval", lambda self: self),
        "evaluation/logits ",
        "only evaluation differs",
    ),
    Bug("input normalisation x 1.001", "torch", "cifar-cnn", plants.scale_images, "step1/activation/blocks.0.conv "),
    Bug("one label shuffled", "jax", "digits-cnn", plants.batches(plants.shuffle_label), "step1/loss "),
    Bug(
        "bias missing",
        "torch",
        "digits-cnn",
        default(T.layers.Conv, "bias", False),
        "initial/conv.bias is missing in the contender",
    ),
    Bug("initial value of one buffer", "torch", "cifar-cnn", plants.move_buffer, "initial/blocks.1.norm.var differs"),
)
