"""Which rounds say nothing about the contenders, and why: pure functions over what was seen while they were timed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compare.execution.telemetry import Telemetry, since, within
from compare.machine.nvml import SLOWDOWNS

FOREIGN_CORES = 0.25
"""Cores kept busy by others, on a run that trains on the CPU, beyond which a round is void."""

Window = tuple[float, float]


@dataclass
class Round:
    """One round: `windows`, start and end in seconds since the run's start of every block timed in it.

    `foreign_cores` is how many cores others kept busy meanwhile, `idle_cores` how many the contenders whose turn it was
    not did during one's blocks, of all contenders the most; None where it could not be told. `gpus` are those that it
    was timed on, of those that are watched, counted from 0; None for all.
    """

    windows: list[Window] = field(default_factory=list[Window])
    foreign_cores: float | None = None
    idle_cores: float | None = None
    gpus: range | None = None


def voids(rounds: Sequence[Round], telemetry: Telemetry, device: str) -> Mapping[int, str]:
    """Return the reason by round, counted from 0, for every round that is void for all its contenders.

    On a GPU: a slowdown for heat or by the hardware, another process, an uncorrected memory error, an Xid. On a CPU:
    others, or contenders while another was timed, that kept more than a quarter of a core busy.
    """
    found: dict[int, str] = {}
    for index, each in enumerate(rounds):
        reasons = _on_gpus(each, telemetry) if device == "cuda" else _on_cpu(each)
        if reasons:
            found[index] = "; ".join(reasons)
    return found


def _on_cpu(each: Round) -> list[str]:
    busy = {
        "other programs": each.foreign_cores,
        "contenders that were not timed": each.idle_cores,
    }
    return [f"{who} kept {n:.2f} cores busy" for who, n in busy.items() if n is not None and n > FOREIGN_CORES]


def _on_gpus(each: Round, telemetry: Telemetry) -> list[str]:
    if not telemetry.others:
        return _on_gpu(each, telemetry)
    used = [(n, gpu) for n, gpu in enumerate(telemetry.each) if each.gpus is None or n in each.gpus]
    return [f"GPU {number}: {reason}" for number, gpu in used for reason in _on_gpu(each, gpu)]


def _on_gpu(each: Round, telemetry: Telemetry) -> list[str]:
    seen, spans = within(telemetry.samples, each.windows), since(telemetry.samples, each.windows)
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
