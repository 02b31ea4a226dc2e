"""The start of the allocator's peaks of memory."""

import torch


def reset_peaks(device: torch.device) -> None:
    """Count memory peaks from now on. Before, cuDNN's search has taken memory that no step needs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
