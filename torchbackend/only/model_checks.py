"""Checks of a user's model that need its first outputs: it must take channels-last images and keep its dtype."""

from collections.abc import Callable, Mapping

import torch

from compare.base.errors import take_first_line
from compare.base.interface import Refused
from compare.base.workloads import ModelSpec


def check_channels_last(spec: ModelSpec, evaluate: Callable[[], object]) -> None:
    """Refuse a model that cannot take images in the memory order of channels-last, as it calls `view` on them."""
    try:
        evaluate()
    except RuntimeError as error:
        raise Refused(f"{spec.arguments['torch']} cannot take channels-last: {take_first_line(error)}") from error


def check_dtypes(outputs: Mapping[str, torch.Tensor], compute_dtype: torch.dtype) -> None:
    """Refuse a layer that turns float64 into a narrower dtype, which no gate could judge."""
    for name, output in outputs.items():
        if compute_dtype == torch.float64 != output.dtype and output.is_floating_point():
            dtype = str(output.dtype).removeprefix("torch.")
            raise Refused(f"{name} is {dtype} where float64 is asked; allowed: models that keep their dtype")
