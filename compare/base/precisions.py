"""Precisions: every fact about a precision stands here, in one entry each.

To add a precision, add an entry. Both backends take the dtypes of its names from their framework (`precision.py`). If a
layer has no kernel for such a dtype, convert its inputs in `layers.py` of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """One precision of training.

    Attributes:
        name: as in `--precision`.
        storage_dtype: of parameters, buffers, optimizer state, batch-norm statistics and the loss.
        compute_dtype: of the inputs and outputs of convolutions and dense layers.
        roundoff: unit roundoff of a product's inputs, which is half the distance from 1 to the next number.
        launch_difference: largest relative difference between the first losses of two launches of one program.
            Kernel search and atomics change the order of summation, and nothing else.
        has_loss_scale: whether the loss is scaled so that small gradients do not vanish.
        required_device: the only device that has this precision; None if every device has it.
    """

    name: str
    storage_dtype: str
    compute_dtype: str
    roundoff: float
    launch_difference: float
    has_loss_scale: bool = False
    required_device: str | None = None

    @property
    def ulp(self) -> float:
        """Return the smallest relative change that moves every number: two units of roundoff."""
        return 2 * self.roundoff

    @property
    def is_mixed(self) -> bool:
        """Whether products are stored in another dtype than parameters, so that their gradients are rounded to it."""
        return self.storage_dtype != self.compute_dtype

    def runs_on(self, device: str) -> bool:
        """Return whether a device, `cpu` or `cuda`, has this precision."""
        return self.required_device in (None, device)


_ALL = (
    Precision("float64", "float64", "float64", 2.0**-53, launch_difference=1e-9),
    Precision("float32", "float32", "float32", 2.0**-24, launch_difference=1e-4),
    # TF32 keeps 10 bits of the fraction of a product's inputs. Everything is stored in float32.
    Precision("tf32", "float32", "float32", 2.0**-11, launch_difference=1e-2, required_device="cuda"),
    Precision("bfloat16", "float32", "bfloat16", 2.0**-8, launch_difference=5e-2),
    Precision("float16", "float32", "float16", 2.0**-11, launch_difference=1e-2, has_loss_scale=True),
)

PRECISIONS: Mapping[str, Precision] = {precision.name: precision for precision in _ALL}

REFERENCE = "float64"
"""The precision in which two models must be the same function. It is its own reference and has no noise floor."""
