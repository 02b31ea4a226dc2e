"""Checks of a user's model in a session: memory order, dtype and norms over devices."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

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


def check_local_norms(model: nn.Module) -> None:
    """Refuse a batch norm that takes statistics of all devices. The flax side takes those of each device."""
    for path, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise Refused(
                f"{path!r} is a torch.nn.SyncBatchNorm, and the batch norms of your models take the statistics of each "
                "device's part; allowed: torch.nn.BatchNorm2d, or one device"
            )
