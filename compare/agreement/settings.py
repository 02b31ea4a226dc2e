"""Effective settings that two contenders must share for their times to be comparable."""

from collections.abc import Mapping
from typing import Any

SHARED = ("parameter_dtype", "compute_dtype", "tf32", "loss_scaling", "batch_size", "deterministic")


def unequal(baseline: Mapping[str, Any], contender: Mapping[str, Any]) -> str | None:
    """Return what differs in the settings that decide the mathematics, None where nothing does."""
    differing = [
        f"{name} is {baseline.get(name)} against {contender.get(name)}"
        for name in SHARED
        if baseline.get(name) != contender.get(name)
    ]
    return f"unequal effective settings: {', '.join(differing)}" if differing else None
