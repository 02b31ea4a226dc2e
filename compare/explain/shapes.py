"""Sizes of tensors from the words of programs and profilers."""

import math
import re

_BITS = re.compile(r"(\d+)")
_NAMES = {"float": 4, "double": 8, "half": 2, "int": 4, "long": 8, "bool": 1, "pred": 1, "char": 1, "scalar": 0}


def itemsize(dtype: str) -> int:
    """Return the bytes of one value of a dtype as torch, C++ or XLA write it: `bfloat16`, `c10::BFloat16`, `f32`."""
    word = dtype.rpartition("::")[2].lower()
    if word in _NAMES:
        return _NAMES[word]
    bits = _BITS.search(word)
    return max(1, int(bits[1]) // 8) if bits and word[0] in "fbisuc" else 0


def product(sizes: str) -> int:
    """Return the number of values of a shape such as `64, 32, 8, 8`. A shape without numbers has one value."""
    return math.prod(int(size) for size in re.findall(r"\d+", sizes))
