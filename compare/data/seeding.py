"""Random streams that depend on nothing but what they are named after."""

import hashlib
import json

import numpy as np


def generator(domain: str, seed: int, *keys: int | str) -> np.random.Generator:
    """Return NumPy's PCG64 generator for one use of the run's seed.

    Streams of different domains (`weights`, `split`, `shuffle`, ...), seeds or keys never coincide, whatever the
    values are: SHA-256 of the unambiguous list [domain, seed, *keys] is the entropy of the `numpy.random.SeedSequence`.
    """
    text = json.dumps(["samestep", domain, seed, *keys])
    entropy = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
