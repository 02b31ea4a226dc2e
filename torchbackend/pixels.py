"""The values of images that are bytes, looked up on the device."""

import torch


def values(images: torch.Tensor, levels: torch.Tensor | None, *, channels_last: bool) -> torch.Tensor:
    """Return images [N, H, W, C] as values [N, C, H, W], NHWC in memory or, unless `channels_last`, NCHW.

    Each byte is looked up in its `levels` [256 * C], a row of channels for each byte, so a value is exactly the one
    that the host would compute. Without levels, images are values already.
    """
    if levels is not None:
        channels = images.shape[-1]
        places = images.to(torch.int32) * channels
        images = levels[places + torch.arange(channels, dtype=torch.int32, device=images.device)]
    turned = images.permute(0, 3, 1, 2)
    if channels_last:
        return turned
    return turned.clone(memory_format=torch.contiguous_format)  # contiguous() leaves images of one channel as they are
