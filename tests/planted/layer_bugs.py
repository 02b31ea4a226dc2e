"""Bugs of layers, models and their state."""

from functools import partial

from torch.nn import functional

import jaxbackend.layers
import jaxbackend.models.mobilenet
import torchbackend.layers
import torchbackend.models.convnext
import torchbackend.models.resnet
import torchbackend.models.staged
from tests.planted import plants
from tests.planted.bug import Bug
from tests.planted.plants import attribute, default

J, T = jaxbackend, torchbackend
NORM = "step1/activation/blocks.0.norm "
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
        "evaluation with batch statistics",
        "torch",
        "cifar-cnn",
        attribute(T.models.staged.StagedCNN, "eval", lambda self: self),
        "evaluation/logits ",
        "only evaluation differs",
    ),
    Bug(
        "bias missing",
        "torch",
        "digits-cnn",
        default(T.layers.Conv, "bias", False),
        "initial/conv.bias is missing in the contender",
    ),
    Bug("initial value of one buffer", "torch", "cifar-cnn", plants.move_buffer, "initial/blocks.1.norm.var differs"),
    Bug(
        "ReLU for ReLU6",
        "jax",
        "mobilenet-v2",
        attribute(J.models.mobilenet, "relu6", J.layers.relu),
        "step1/activation/blocks.0.depthwise.conv ",
    ),
    Bug(
        "transposed convolution's kernel turned round",
        "jax",
        "unet",
        plants.turned_kernel,
        "step1/activation/up.0.enlarge ",
    ),
    Bug(
        "transposed convolution's padding on one side",
        "jax",
        "unet",
        plants.one_sided_padding,
        "step1/activation/up.0.enlarge ",
    ),
    Bug(
        "the row that pooling left out restored at the near edge",
        "torch",
        "unet",
        attribute(T.layers.Concatenate, "forward", plants.near_edge),
        "step1/activation/up.0.join ",
    ),
)
