"""Made-up records of a small network, named and ordered as `compare.worker.recording` makes them."""

from collections.abc import Callable

import numpy as np

from compare.base.interface import Array, Arrays

ACTIVATIONS = {"first": (4, 8, 8, 3), "strided": (4, 4, 4, 3), "norm": (4, 4, 4, 3), "dense": (4, 5)}
PARAMETERS = {"first.kernel": (3, 3, 2, 3), "strided.kernel": (3, 3, 3, 3), "norm.scale": (3,), "dense.kernel": (3, 5)}
BUFFERS = ("norm.mean", "norm.var")
STEPS = 2


def exact(seed: int = 0) -> Arrays:
    """Return a float64 record of two steps and an evaluation, its values float32 numbers."""
    random = np.random.default_rng(seed)
    arrays = {f"initial/{name}": random.standard_normal(shape) for name, shape in PARAMETERS.items()}
    arrays |= {f"initial/{name}": random.uniform(0.5, 2, 3) for name in BUFFERS}
    for step in range(1, STEPS + 1):
        shapes = {f"activation/{name}": shape for name, shape in ACTIVATIONS.items()} | {"logits": (4, 5), "loss": ()}
        for kind in ("gradient", "update"):
            shapes |= {f"{kind}/{name}": shape for name, shape in PARAMETERS.items()}
        arrays |= {f"step{step}/{name}": np.asarray(random.standard_normal(shape)) for name, shape in shapes.items()}
        for name in BUFFERS:
            arrays[f"step{step}/buffer/{name}"] = 0.9 * arrays[f"initial/{name}"] + 0.1 * random.uniform(0.5, 2, 3)
    arrays["evaluation/logits"] = random.standard_normal((4, 5))
    for name in (*PARAMETERS, *BUFFERS):
        arrays[f"delta/{name}"] = random.standard_normal(arrays[f"initial/{name}"].shape)
    return {name: array.astype(np.float32).astype(np.float64) for name, array in arrays.items()}


def rounded(record: Arrays, roundoff: float, *, seed: int = 0, dtype: str = "float64") -> Arrays:
    """Return the record with every value but the initial ones moved by a relative `roundoff`, up or down at random."""
    random = np.random.default_rng(seed)

    def moved(name: str, array: Array) -> Array:
        if name.startswith("initial/"):
            return array.astype(dtype)
        start = record[f"initial/{name.partition('/buffer/')[2]}"] if "/buffer/" in name else 0.0
        change = array - start
        return (start + change * (1 + roundoff * random.choice((-1.0, 1.0), array.shape))).astype(dtype)

    return {name: moved(name, array) for name, array in record.items()}


def changed(record: Arrays, change: Callable[[Array], Array], *parts: str) -> Arrays:
    """Return the record with `change` made to every tensor whose name contains one of the parts."""
    return {
        name: change(array) if any(part in name for part in parts) and not name.startswith("initial/") else array
        for name, array in record.items()
    }


def compared(record: Arrays) -> list[str]:
    """Return the names of what is compared."""
    return [name for name in record if not name.startswith("initial/")]
