"""Bugs of losses, update rules, precision and batches."""

from functools import partial

import jax.numpy as jnp
import optax
import torch

import jaxbackend.optim
import jaxbackend.step
import torchbackend.optim
import torchbackend.step
from tests.planted import plants
from tests.planted.bug import Bug
from tests.planted.plants import attribute, rule

J, T = jaxbackend, torchbackend
UPDATE = "step1/update/blocks.0.conv.kernel "
CLIPPED = "step1/update/down.0.first.conv.kernel "
BUGS = (
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
        attribute(J.step, "unscale", lambda gradients, scaling: (gradients, jnp.bool_(True))),
        "step1/gradient/dense.bias: the contender's",
        "more than rounding",
        precision="float16",
    ),
    Bug("input normalisation x 1.001", "torch", "cifar-cnn", plants.scale_images, "step1/activation/blocks.0.conv "),
    Bug("one label shuffled", "jax", "digits-cnn", plants.batches(plants.shuffle_label), "step1/loss "),
    Bug(
        "loss averaged over images for pixels",
        "torch",
        "unet",
        attribute(T.step, "softmax_cross_entropy", plants.mean_over_images),
        "step1/loss ",
        "every gradient is scaled by 49",
    ),
    Bug(
        "gradients clipped value by value",
        "torch",
        "unet",
        attribute(T.optim, "clip", plants.clip_by_value),
        CLIPPED,
        "clipping",
    ),
    Bug(
        "norm clipped without the 1e-6",
        "jax",
        "unet",
        attribute(J.optim, "clip", optax.clip_by_global_norm),
        CLIPPED,
        "clipping",
    ),
    Bug(
        "gradients clipped before the loss scale is undone",
        "torch",
        "unet",
        plants.clip_before_unscaling,
        "step1/update/up.0.convs.last.norm.scale: the contender's",
        "more than rounding",
        precision="float16",
    ),
    Bug(
        "micro-batches summed for averaged",
        "torch",
        "cifar-cnn, two micro-batches",
        attribute(T.step, "softmax_cross_entropy", plants.twice),
        "step1/loss ",
        "every gradient is scaled by 2",
    ),
    Bug(
        "batch-norm statistics of the last micro-batch alone",
        "jax",
        "cifar-cnn, two micro-batches",
        attribute(J.step.TrainState, "_replace", lambda self, **_: self),
        "step1/buffer/blocks.0.norm.mean ",
        "only buffers differ",
    ),
    Bug(
        "the timed step alone sees its images turned round, in float32 alone",
        "torch",
        "cifar-cnn",
        attribute(T.step.TrainingStep, "__call__", plants.timed_on_negatives(T.step.TrainingStep.__call__)),
        "delta/blocks.0.conv.kernel: ",
        precision="float32",
    ),
    Bug(
        "no gradient of one layer in bfloat16",
        "torch",
        "cifar-cnn",
        attribute(T.step.TrainingStep, "inspect", plants.without_gradient(T.step.TrainingStep.inspect)),
        "step1/gradient/blocks.1.conv.kernel: ",
        precision="bfloat16",
    ),
)
