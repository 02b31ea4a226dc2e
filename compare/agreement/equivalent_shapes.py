"""Arrays that two sides give in different shapes although they are the same."""

from collections.abc import Collection

from compare.base.interface import Arrays


def without_single_pixels(record: Arrays, layers: Collection[str]) -> Arrays:
    """Return a record in which what `layers` take and return has no axes of length 1 but the batch's.

    Where an image is one pixel, a dense layer gets [N, C], and the 1x1 convolution that does the same [N, 1, 1, C].
    """
    return {
        name: array.reshape(len(array), *(size for size in array.shape[1:] if size != 1))
        if _of_activation(name) in layers
        else array
        for name, array in record.items()
    }


def _of_activation(name: str) -> str | None:
    """Return the layer that an activation is of, or the input of, None for other tensors."""
    _, is_activation, call = name.partition("/activation/")
    return call.removesuffix(".input").partition("#")[0] if is_activation else None
