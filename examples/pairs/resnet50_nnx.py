"""samestep's own ResNet-50 in flax.nnx. Its layers keep torch's conventions.

Beside it: `resnet_torch.py:resnet50`, and where they are installed torchvision's and timm's.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxbackend.models.resnet import ResNet
from jaxbackend.precision import Policy


def model(
    width: int = 64,
    classes: int = 1000,
    depths: Sequence[int] = (3, 4, 6, 3),
    dtype: Any = jnp.float32,
    param_dtype: Any = jnp.float32,
) -> nnx.Module:
    """Return ResNet-50 v1.5. samestep gives `dtype` and `param_dtype` to a factory that names them."""
    policy = Policy(param_dtype, dtype, tf32=None, loss_scale=None)
    widths = [width * 2**stage for stage in range(4)]
    # Of the image's sizes, only the number of channels decides a shape here.
    return ResNet(
        (224, 224, 3), classes, policy=policy, block="bottleneck", depths=depths, widths=widths, stem="imagenet"
    )
