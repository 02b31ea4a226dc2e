"""The profile of some training steps: how a worker hands a profiler's events to the parent.

A profile travels as one JSON file, because it has megabytes. Its events have the form of Chrome's trace events, which
both frameworks' profilers write: `name`, `cat`, `ts` and `dur` in microseconds, `tid`, `args`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compare.base import strict_json
from compare.base.operation_counts import Operation

TORCH, XLA = "torch", "xla"

LAYER_PREFIX = "layer:"
"""Begins the name of the event that spans a layer's forward pass in torch."""

UPDATE_SCOPE = "optimizer"
"""The scope of the update in JAX's programs."""

POOLING = "pooling"

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Profile:
    """The events of `steps` training steps.

    Attributes:
        kind: `TORCH` or `XLA`, which says how events are read.
        device: `cpu` or `cuda`.
        steps: the number of profiled steps.
        events: what ran, as the profiler saw it.
        programs: the text of every compiled program: XLA's HLO, or TorchInductor's Python.
        nodes: layer by node of the graphs that TorchInductor got.
        layers: kind of each layer (`layer_kind`) by its neutral name.
        parameters: number of values of each parameter by its neutral name.
    """

    kind: str
    device: str
    steps: int
    events: Sequence[dict[str, Any]]
    programs: Sequence[str] = ()
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    layers: Mapping[str, str] = field(default_factory=dict[str, str])
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])


def layer_kind(role: str, class_name: str) -> str:
    """Return the kind of a layer: its role (`compare.base.trace.ROLES`), or `pooling` for a module of that name."""
    return POOLING if role == "parameters" and "pool" in class_name.lower() else role


def write(profile: Profile) -> str:
    """Return a profile as JSON."""
    return json.dumps(strict_json.encode(profile))


def read(text: str) -> Profile:
    """Return the profile that `write` wrote.

    Raises:
        TypeError, ValueError: the text has another content.
    """
    return strict_json.decode(Profile, json.loads(text))


@dataclass(frozen=True)
class Peaks:
    """The most that a device reached in simple loops: bytes per second of a copy, operations per second of a product.

    `reason` says why a figure is missing.
    """

    bandwidth_bytes_per_second: float | None = None
    flops_per_second: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class ProfileReply:
    """The figures of a profiled session.

    Attributes:
        steps: the number of profiled steps.
        step_seconds: seconds per step without the profiler, with all work of the device.
        host_seconds: seconds per step in which Python started the work, without the profiler.
        operations: the step's convolutions and products, from traced shapes; None if they could not be traced.
        peaks: the device's peaks at the session's precision; None if they were not asked for.
        reason: why there is no profile or no count of operations, or None.
    """

    steps: int
    step_seconds: float
    host_seconds: float
    operations: Sequence[Operation] | None
    peaks: Peaks | None
    reason: str | None
