"""Which kernel computes which product: only where it was measured to win, on this kind of device."""

import contextlib
import dataclasses
from collections.abc import Generator, Mapping

from compare.base.interface import Refused
from compare.kernels.launches import Blocks, Mask

Part = tuple[str, int, int, Mask]
"""A kernel, and the input channels, output channels and mask of its product. Kernels of gradients take `plain` only."""

_NARROW_BYTES = 2
_WIDE = Blocks(32, 32, 32, 4, 2)
"""For float32, whose tiles take twice the room. It judges the kernels' arithmetic, and no time."""

HOPPER: Mapping[Part, Blocks] = {
    ("multiply", 64, 64, "none"): Blocks(128, 64, 64, 4, 4, 2),
    ("multiply", 64, 256, "none"): Blocks(64, 64, 128, 4, 4, 2),
    ("multiply", 64, 256, "affine"): Blocks(64, 64, 128, 4, 4, 2),
    ("multiply", 256, 64, "plain"): Blocks(128, 64, 64, 4, 3, 2),
    ("multiply", 256, 128, "plain"): Blocks(64, 64, 128, 4, 4, 2),
    ("multiply", 128, 512, "affine"): Blocks(64, 64, 128, 4, 4, 2),
    ("multiply", 512, 128, "plain"): Blocks(64, 64, 128, 4, 4, 2),
    ("data_gradient", 256, 64, "plain"): Blocks(64, 128, 64, 4, 3, 2),
    ("weight_gradient", 256, 64, "plain"): Blocks(64, 256, 64, 8, 3),
    ("data_gradient", 512, 128, "plain"): Blocks(64, 128, 64, 4, 3, 2),
    ("weight_gradient", 512, 128, "plain"): Blocks(64, 256, 64, 8, 3),
    ("data_gradient", 256, 128, "plain"): Blocks(64, 128, 64, 4, 3, 2),
    ("weight_gradient", 256, 128, "plain"): Blocks(64, 256, 64, 8, 3),
}
"""The winners of `benchmarks/fused_shapes.py` on an NVIDIA H200, in bfloat16."""

DEVICES: Mapping[str, Mapping[Part, Blocks]] = {"NVIDIA H200": HOPPER}

_chosen: dict[tuple[str, int, int, str], list[int]] = {}
_products: dict[tuple[int, int], bool] = {}
_uses_tf32: list[bool] = [False]


def use(device: str, value_bytes: int, *, tf32: bool) -> None:
    """Use the kernels that were measured on a device from now on, for values of so many bytes.

    Raises:
        Refused: nothing was measured there.
    """
    found = next((table for name, table in DEVICES.items() if device.startswith(name)), None)
    if found is None:
        raise Refused(
            f"fused-batch-norm was measured on {' and '.join(DEVICES)}, and this is {device}; allowed: without it"
        )
    _set(found if value_bytes <= _NARROW_BYTES else dict.fromkeys(found, _WIDE), tf32=tf32)


def find(kernel: str, inner: int, outer: int, mask: str) -> list[int] | None:
    """Return the block sizes of a kernel, as `Blocks` takes them. None where the library computes.

    Compilers trace this function. So it takes and returns plain numbers only.
    """
    return _chosen.get((kernel, inner, outer, mask))


def has_any(inner: int, outer: int) -> bool:
    """Tell whether a kernel computes anything of the product with these channels. Compilers trace this, too."""
    return _products.get((inner, outer), False)


def uses_tf32() -> bool:
    """Tell whether kernels round float32 factors to TF32."""
    return _uses_tf32[0]


@contextlib.contextmanager
def using(chosen: Mapping[Part, Blocks], *, tf32: bool = False) -> Generator[None]:
    """Use these kernels, and no others, while the context lasts."""
    before = dict(_chosen), _uses_tf32[0]
    _set(chosen, tf32=tf32)
    try:
        yield
    finally:
        _keep(*before)


def _set(chosen: Mapping[Part, Blocks], *, tf32: bool) -> None:
    _keep({part: list(dataclasses.astuple(blocks)) for part, blocks in chosen.items()}, tf32)


def _keep(chosen: Mapping[tuple[str, int, int, str], list[int]], tf32: bool) -> None:
    _uses_tf32[0] = tf32
    _chosen.clear()
    _chosen.update(chosen)
    _products.clear()
    _products.update({part[1:3]: True for part in chosen})
