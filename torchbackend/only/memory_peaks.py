"""The start of the allocator's peaks of memory."""

import torch


def reset_peaks(device: torch.device) -> None:
    """Count memory peaks from now on: cuDNN's search has tried algorithms whose memory no step needs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
