"""The twin of `SimpleCNN` in NumPy: its forward pass, and its gradients by hand."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from compare.base.interface import Array, Arrays

SIZE = 3  # height and width of the convolution's kernel


LAYERS = ("conv", "pool", "flatten", "dense")


def signature(image: tuple[int, int, int], classes: int, features: int) -> dict[str, tuple[int, ...]]:
    height, width, channels = image
    return {
        "conv.kernel": (SIZE, SIZE, channels, features),
        "conv.bias": (features,),
        "dense.kernel": ((height // 2) * (width // 2) * features, classes),
        "dense.bias": (classes,),
    }


def convolve(images: Array, parameters: Arrays) -> Array:
    """Return the convolution of images [N, H, W, C] that keeps their size."""
    kernel = parameters["conv.kernel"]
    outputs = _patches(images) @ kernel.reshape(-1, kernel.shape[-1]) + parameters["conv.bias"]
    return outputs.reshape(*images.shape[:3], -1)


def pool(images: Array) -> tuple[Array, Array]:
    """Return the largest of every 2x2 pixels, and which of the four it is."""
    windows = _windows(images)
    places = windows.argmax(-1)[..., np.newaxis]
    return np.take_along_axis(windows, places, -1)[..., 0], places


def apply_dense(inputs: Array, parameters: Arrays) -> Array:
    return inputs.reshape(len(inputs), -1) @ parameters["dense.kernel"] + parameters["dense.bias"]


def forward(images: Array, parameters: Arrays) -> Array:
    """Return logits [N, classes]."""
    return apply_dense(pool(np.maximum(convolve(images, parameters), 0))[0], parameters)


def train(images: Array, labels: Array, parameters: Arrays, smoothing: float) -> tuple[Array, Arrays, Arrays]:
    """Return the mean loss of a batch, the outputs of the layers, and the gradients of the parameters."""
    convolved = convolve(images, parameters)
    pooled, places = pool(np.maximum(convolved, 0))
    logits = apply_dense(pooled, parameters)
    count, classes = logits.shape
    shifted = logits - logits.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    targets = np.eye(classes, dtype=logits.dtype)[labels] * logits.dtype.type(1 - smoothing)
    targets += logits.dtype.type(smoothing / classes)
    loss = -(targets * logarithms).sum() / logits.dtype.type(count)
    of_logits = (np.exp(logarithms) - targets) / logits.dtype.type(count)
    of_pooled = (of_logits @ parameters["dense.kernel"].T).reshape(pooled.shape)
    windows = np.zeros((*pooled.shape, 4), logits.dtype)
    np.put_along_axis(windows, places, of_pooled[..., np.newaxis], -1)
    of_convolved = _unwindowed(windows, convolved.shape) * (convolved > 0)
    features = of_convolved.reshape(-1, convolved.shape[-1])
    gradients = {
        "conv.kernel": (_patches(images).T @ features).reshape(parameters["conv.kernel"].shape),
        "conv.bias": features.sum(0),
        "dense.kernel": pooled.reshape(count, -1).T @ of_logits,
        "dense.bias": of_logits.sum(0),
    }
    outputs = {"conv": convolved, "pool": pooled, "flatten": pooled.reshape(count, -1), "dense": logits}
    return np.asarray(loss), outputs, gradients


def _patches(images: Array) -> Array:
    """Return the 3x3 pixels around every pixel, [N * H * W, 9 * C], with zeros around the image."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = sliding_window_view(padded, (SIZE, SIZE), axis=(1, 2))  # [N, H, W, C, 3, 3]
    return np.moveaxis(windows, 3, -1).reshape(-1, SIZE * SIZE * images.shape[-1])


def _windows(images: Array) -> Array:
    """Return every 2x2 pixels of images [N, H, W, C] side by side: [N, H // 2, W // 2, C, 4]."""
    count, height, width, channels = images.shape
    whole = images[:, : height // 2 * 2, : width // 2 * 2].reshape(count, height // 2, 2, width // 2, 2, channels)
    return whole.transpose(0, 1, 3, 5, 2, 4).reshape(count, height // 2, width // 2, channels, 4)


def _unwindowed(windows: Array, shape: tuple[int, ...]) -> Array:
    """Return images of a shape from their windows, the inverse of `_windows`. A last odd row or column is zero."""
    count, height, width, channels, _ = windows.shape
    whole = windows.reshape(count, height, width, channels, 2, 2).transpose(0, 1, 4, 2, 5, 3)
    images = np.zeros(shape, windows.dtype)
    images[:, : 2 * height, : 2 * width] = whole.reshape(count, 2 * height, 2 * width, channels)
    return images
