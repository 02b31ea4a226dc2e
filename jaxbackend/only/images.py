"""Images as a step takes them: values, or bytes with the values that they stand for."""

from dataclasses import dataclass

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pixels:
    """Images as bytes [..., N, H, W, C], and `levels` [256, C], the value of each byte in each channel."""

    bytes: jax.Array
    levels: jax.Array

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, index: jax.Array) -> "Pixels":
        return Pixels(self.bytes[index], self.levels)


Images = jax.Array | Pixels
