"""Small Flax models for tasks other than classification; `tasks_torch.py` has the same models in PyTorch."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class Segmenter(nn.Module):
    """Return a class for each pixel [N, H, W, classes]."""

    classes: int
    width: int
    padding: Any

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the outputs."""
        x = nn.relu(nn.Conv(self.width, (3, 3), strides=2, padding=self.padding)(images))
        x = nn.relu(nn.ConvTranspose(self.width, (2, 2), strides=(2, 2))(x))
        return nn.Conv(self.classes, (1, 1))(x)


def segmenter(classes: int = 4, width: int = 8, padding: str = "explicit") -> nn.Module:
    """Return a model for `--loss cross-entropy` with a class a pixel."""
    return Segmenter(classes, width, ((1, 1), (1, 1)) if padding == "explicit" else padding)


class Upscaler(nn.Module):
    """Return images of twice the size [N, 2H, 2W, C]."""

    width: int
    method: str

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the outputs."""
        n, h, w, c = images.shape
        x = nn.relu(nn.Conv(self.width, (3, 3), padding=1)(images))
        x = jax.image.resize(x, (n, 2 * h, 2 * w, self.width), self.method)
        return nn.Conv(c, (3, 3), padding=1)(x)


def upscaler(width: int = 8, method: str = "nearest") -> nn.Module:
    """Return a model for `--loss l1`."""
    return Upscaler(width, method)


class Detector(nn.Module):
    """Return one logit for each image [N]."""

    width: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the outputs."""
        x = nn.gelu(nn.Conv(self.width, (3, 3), padding=1)(images), approximate=False)
        return nn.Dense(1)(x.mean((1, 2)))[:, 0]


def detector(width: int = 8) -> nn.Module:
    """Return a model for `--loss binary-cross-entropy`."""
    return Detector(width)


class Autoencoder(nn.Module):
    """Return the input again [N, H, W, C]."""

    width: int
    bound: bool

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the outputs."""
        channels = images.shape[-1]
        x = nn.relu(nn.Conv(self.width, (3, 3), strides=2, padding=1)(images))
        x = nn.ConvTranspose(channels, (2, 2), strides=(2, 2))(x)
        return jnp.tanh(x) if self.bound else x


def autoencoder(width: int = 8, bound: bool = False) -> nn.Module:
    """Return a model for `--loss mse,target=input`."""
    return Autoencoder(width, bound)


class TwoHeads(nn.Module):
    """Return classes [N, classes] and, from an earlier layer, values [N, 3]."""

    classes: int
    width: int
    as_dict: bool

    @nn.compact
    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array] | dict[str, jax.Array]:
        """Return the outputs."""
        x = nn.relu(nn.Conv(self.width, (3, 3), padding=1)(images))
        side = nn.Dense(3)(x.mean((1, 2)))
        x = nn.relu(nn.Conv(2 * self.width, (3, 3), padding=1)(x))
        main = nn.Dense(self.classes)(x.mean((1, 2)))
        return {"main": main, "side": side} if self.as_dict else (main, side)


def two_heads(classes: int = 4, width: int = 8, as_dict: bool = False) -> nn.Module:
    """Return a model for a loss of each output: `--loss 0=cross-entropy --loss 1=huber,weight=0.4`."""
    return TwoHeads(classes, width, as_dict)


class Denoiser(nn.Module):
    """Return noise [N, H, W, C] from an image and a time step."""

    width: int
    steps: int

    @nn.compact
    def __call__(self, image: jax.Array, t: jax.Array) -> jax.Array:
        """Return the outputs."""
        time = nn.silu(nn.Dense(self.width)(nn.Embed(self.steps, self.width)(t)))
        x = nn.Conv(self.width, (3, 3), padding=1)(image)
        x = nn.silu(x + time[:, None, None, :])
        return nn.Conv(image.shape[-1], (3, 3), padding=1)(x)


def denoiser(width: int = 8, steps: int = 100) -> nn.Module:
    """Return a model for `--input image=8x8x3 --input t=int:100 --loss mse`."""
    return Denoiser(width, steps)


class Signals(nn.Module):
    """Return classes [N, classes] of signals [N, length, channels] or volumes [N, D, H, W, channels]."""

    classes: int
    width: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return the outputs."""
        axes = x.ndim - 2
        x = nn.Conv(self.width, (3,) * axes, padding=1)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.relu(nn.Conv(2 * self.width, (3,) * axes, strides=2, padding=1)(x))
        return nn.Dense(self.classes)(x.mean(tuple(range(1, axes + 1))))


def signals(classes: int = 4, width: int = 8) -> nn.Module:
    """Return a model for `--input signal=32x2`."""
    return Signals(classes, width)


volumes = signals


def focal_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the focal loss with a focus of 2 (Lin et al. 2017)."""
    log = jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]
    return -((1 - jnp.exp(log)) ** 2 * log).mean()
