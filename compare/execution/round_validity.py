"""Find the rounds that are void, and why."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compare.execution.telemetry import Telemetry, pair_with_earlier, select_within
from compare.machine import cpu, variables
from compare.machine.nvml import SLOWDOWNS
from compare.settings.plan import Plan

FOREIGN_CORES = 0.25
"""The cores that others may keep busy in a valid round on the CPU, and as many again for each spare core."""

Window = tuple[float, float]


@dataclass
class Round:
    """The observations of one round.

    Attributes:
        windows: start and end of every timed block, in seconds since the run's start.
        foreign_cores: the number of cores that other programs kept busy, or None if unknown.
        idle_cores: the number of cores that the other contenders kept busy during one contender's blocks. It is the
            largest for any contender, or None if unknown.
        busiest: the program that kept cores busiest, if the round is void for other programs and it is known.
        gpus: the numbers of the GPUs of the round among the watched ones, or None for all.
    """

    windows: list[Window] = field(default_factory=list[Window])
    foreign_cores: float | None = None
    idle_cores: float | None = None
    busiest: str | None = None
    gpus: range | None = None


def find_limit(plan: Plan) -> float:
    """Return how many cores others may keep busy in a valid round of a plan on the CPU.

    Spare cores are the physical cores for which contenders have no thread. Other programs can work there.
    """
    if plan.void_limit is not None:
        return plan.void_limit
    cores = cpu.count_physical_cores()
    spare = cores - variables.count_threads(os.environ) if plan.devices == 1 else 0
    return FOREIGN_CORES * (1 + max(0, spare))


def find_void_rounds(
    rounds: Sequence[Round], telemetry: Telemetry, device: str, limit: float | None = None
) -> Mapping[int, str]:
    """Return the reason of every void round, by its index.

    On a GPU, a round is void after a slowdown for heat or by the hardware, another process, an uncorrected memory error
    or an Xid. On a CPU, it is void if other programs or waiting contenders kept more than `limit` cores busy. Without
    `limit`, as in older results, it is a quarter of a core.
    """
    cores = FOREIGN_CORES if limit is None else limit
    void: dict[int, str] = {}
    for index, each in enumerate(rounds):
        reasons = _find_reasons_on_gpus(each, telemetry) if device == "cuda" else _find_reasons_on_cpu(each, cores)
        if reasons:
            void[index] = "; ".join(reasons)
    return void


def _find_reasons_on_cpu(each: Round, limit: float) -> list[str]:
    busy = {
        "other programs": each.foreign_cores,
        "contenders that were not timed": each.idle_cores,
    }
    return [f"{who} kept {n:.2f} cores busy" for who, n in busy.items() if n is not None and n > limit]


def _find_reasons_on_gpus(each: Round, telemetry: Telemetry) -> list[str]:
    if not telemetry.others:
        return _find_reasons_on_gpu(each, telemetry)
    used = [(n, gpu) for n, gpu in enumerate(telemetry.each) if each.gpus is None or n in each.gpus]
    return [f"GPU {number}: {reason}" for number, gpu in used for reason in _find_reasons_on_gpu(each, gpu)]


def _find_reasons_on_gpu(each: Round, telemetry: Telemetry) -> list[str]:
    seen, spans = select_within(telemetry.samples, each.windows), pair_with_earlier(telemetry.samples, each.windows)
    bits = {bit: name for bit, name in SLOWDOWNS.items() if any((s.clock_reasons or 0) & bit for s in seen)}
    reasons = list(bits.values())
    foreign = sorted({pid for sample in seen for pid in sample.foreign or ()})
    if foreign and telemetry.listed:
        reasons.append(f"foreign process {', '.join(map(str, foreign))} on the GPU")
    errors = sum(
        max(0, after.uncorrected_errors - before.uncorrected_errors)
        for before, after in spans
        if before is not None and before.uncorrected_errors is not None and after.uncorrected_errors is not None
    )
    if errors:
        reasons.append(f"{errors} uncorrected memory error{'' if errors == 1 else 's'} (ECC)")
    xids = [str(xid) for _, sample in spans for xid in sample.xids or ()]
    if xids:
        reasons.append(f"Xid {', '.join(xids)}")
    return reasons
