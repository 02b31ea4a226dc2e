"""Prove with known inputs that samestep's own instruments work on this machine: `samestep selftest`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.base import scratch
from compare.base.commands import Ballast, Block, MeasureMemory, Open, Plant, ProveWork, WarmUp
from compare.base.early_stopping import LOOKS
from compare.data import dataset_file
from compare.execution import round_validity, simulation
from compare.execution.child import Child
from compare.execution.launcher import Launcher, Progress
from compare.execution.round_validity import Round
from compare.execution.run_state import ContenderRun
from compare.execution.simulation import Machine
from compare.execution.telemetry import Sample, Telemetry
from compare.execution.timed_round import BLOCK_SECONDS
from compare.machine.nvml import SLOWDOWNS, Device
from compare.settings import backends, plan
from compare.settings.options import Settings

TRIALS = 2000
DELAY_SECONDS, DELAY_LIMIT = 0.05, 0.01
BALLAST_BYTES, BALLAST_LIMIT = 2**30, 0.02
_FIRST_BALLAST_BYTES = 2**20
_BLOCKS, _DELAYED_STEPS, _UNWAITED_STEPS, _MEMORY_STEPS = 9, 5, 2, 3
_PREALLOCATED = 0.25
_FIGURES = ("live_peak_bytes", "pool_peak_bytes")
_OUTCOMES = {True: "pass", False: "FAIL", None: "not possible here"}


@dataclass(frozen=True)
class Proof:
    """One proof in words.

    Attributes:
        name: the question.
        found: the measured value.
        limit: the allowed values.
        held: whether it held, None if it is impossible on this machine.
        failed: whether a backend failed, so that there is no value.
    """

    name: str
    found: str
    limit: str
    held: bool | None
    failed: bool = False


def run(names: Sequence[str], device: str, progress: Progress) -> list[Proof]:
    """Make all proofs: of statistics, of void rounds, and with each backend of time and memory.

    Raises:
        Refused: a backend is unknown or not installed, or the device does not exist.
    """
    for name in names:
        backends.find(name)
    with scratch.open_folder() as folder:
        stock = [f"{name}:stock" for name in names]
        settings = Settings(contenders=stock, out=folder, device=device, timed=False)
        selftest_plan = plan.make(settings, least_contenders=1)
        launcher = Launcher(selftest_plan, folder)
        dataset_file.save(selftest_plan.dataset, launcher.dataset)
        total = 1 + len(selftest_plan.contenders)
        progress("statistics", 0, total)
        proofs = [*prove_statistics(), *prove_voiding()]
        for index, contender in enumerate(selftest_plan.contenders, start=1):
            progress(contender.backend, index, total)
            proofs += _prove_backend(launcher, ContenderRun(contender))
        progress("done", total, total)
        return proofs


def prove_statistics(trials: int = TRIALS) -> Iterator[Proof]:
    """Judge simulated runs of known ratio for false alarms, coverage and power."""
    false_alarms, coverage = trials * 9 // 100, trials * 91 // 100
    for name, machine in (("A/A", Machine()), ("A/A on a machine that slows down by 5 %", Machine(drift=0.05))):
        count = simulation.count_significant(machine, trials=trials, rounds=10)
        limit = f"at most {false_alarms}"
        yield Proof(f"{name}: significant at 5 %", f"{count} of {trials:,} runs", limit, count <= false_alarms)
    for slowdown in (0.005, 0.01, 0.03):
        count = simulation.count_covered(Machine(), trials=trials, rounds=10, slowdown=slowdown)
        name = f"slowdown of {100 * slowdown:g} %: inside the 95 % interval"
        yield Proof(name, f"{count:,} of {trials:,} runs", f"at least {coverage:,}", count >= coverage)
    count = simulation.count_significant(Machine(), trials=trials, rounds=20, slowdown=0.01)
    least = trials * 90 // 100
    name = "slowdown of 1 %: seen with 20 rounds"
    yield Proof(name, f"{count:,} of {trials:,} runs", f"at least {least:,}", count >= least)
    yield from _prove_early_stopping()


def _prove_early_stopping() -> Iterator[Proof]:
    """Judge simulated runs that stop as soon as the verdict is certain, on steady and on drifting machines."""
    for drift in (0.0, 0.05):
        name = "stopping early" + (" on a machine that slows down by 5 % in a round" if drift else "")
        false = simulation.stop_early(1.0, 0.02, drift=drift).false.mean()
        yield Proof(f"{name}: false verdicts in A/A", f"{false:.1%}", "at most 5.3%", bool(false <= 0.053))
        covered = min(simulation.stop_early(ratio, 0.02, drift=drift).covered.mean() for ratio in (1.0, 1.03, 1.1, 4.0))
        yield Proof(f"{name}: inside the interval", f"{covered:.1%}", "at least 94.7%", bool(covered >= 0.947))
    careless = simulation.stop_early(1.0, 0.02, looks=dict.fromkeys(LOOKS, 0.05)).false.mean()
    name = "stopping early with the whole error at each look: it is noticed"
    yield Proof(name, f"{careless:.1%} false verdicts", "above 5.3%", bool(careless > 0.053))


def prove_voiding() -> Iterator[Proof]:
    """Find the void rounds of a scripted GPU that fails in one round of five."""
    rounds = [Round([(float(number), number + 0.5)]) for number in range(5)]
    quiet = [
        Sample(0.1 * tick, clock_reasons=0, foreign=(), own=1, uncorrected_errors=0, xids=()) for tick in range(60)
    ]
    faults: dict[str, dict[str, Any]] = {
        **{name: {"clock_reasons": bit} for bit, name in SLOWDOWNS.items()},
        "foreign process": {"foreign": (4711,)},
        "uncorrected memory error": {"uncorrected_errors": 1},
        "Xid": {"xids": (79,)},
    }
    for name, fault in faults.items():
        samples = [Sample(**{**vars(each), **(fault if _during(name, each.seconds) else {})}) for each in quiet]
        void = list(round_validity.find_void_rounds(rounds, Telemetry(samples), "cuda"))
        numbers = ", ".join(str(index + 1) for index in void) or "none"
        yield Proof(f"scripted GPU, {name} in round 3", f"void: {numbers}", "3", void == [2])


def _during(name: str, seconds: float) -> bool:
    # A counter keeps its value once it has risen. Every other fault ends.
    return seconds > 2.15 if "memory error" in name else 2.15 < seconds < 2.25


def _prove_backend(launcher: Launcher, run: ContenderRun) -> Iterator[Proof]:
    name, device = run.contender.backend, launcher.plan.device
    for part, proofs in (("time", _prove_time), ("memory", _prove_memory)):
        with launcher.child(run, purpose="selftest") as child:
            yield from proofs(launcher, child, run)
        if run.status != "ok":
            failure = f"{run.status}: {run.reason}"
            yield Proof(f"{name} on {device}: {part}", failure, "no failure", held=False, failed=True)
            return


def _prove_time(launcher: Launcher, child: Child, run: ContenderRun) -> Iterator[Proof]:
    device = launcher.plan.device
    name = f"{run.contender.backend} on {device}"

    def step_seconds(steps: int) -> float:
        # The minimum, because other programs only add time.
        return min(child.call(Block(steps)) / steps for _ in range(_BLOCKS))

    child.call(Open(launcher.spec(run)))
    child.call(WarmUp(BLOCK_SECONDS[device], None))
    # Compare two delays, because a delay also hides launches on a GPU and lets a CPU's threads fall asleep.
    child.call(Plant(DELAY_SECONDS))
    once = step_seconds(_DELAYED_STEPS)
    child.call(Plant(2 * DELAY_SECONDS))
    measured = step_seconds(_DELAYED_STEPS) - once
    held = abs(measured - DELAY_SECONDS) <= DELAY_LIMIT * DELAY_SECONDS
    where = "on the device" if device == "cuda" else "of the host"
    delay = f"{name}: {1e3 * DELAY_SECONDS:g} ms more of delay {where}"
    yield Proof(delay, f"{1e3 * measured:.3f} ms read", f"within {DELAY_LIMIT:.0%}", held)
    if device != "cuda":
        yield Proof(f"{name}: synchronisation left out", "a CPU always waits for a step", "", None)
        return
    child.call(Plant(DELAY_SECONDS, waits=False))
    proof = child.call(ProveWork(_UNWAITED_STEPS))
    blind, left = proof.block_seconds / _UNWAITED_STEPS - once, proof.unwaited_seconds
    wrong = abs(blind - DELAY_SECONDS) > DELAY_LIMIT * DELAY_SECONDS
    yield Proof(f"{name}: synchronisation left out", f"{1e3 * blind:.3f} ms read", "the proof above fails", wrong)
    noticed = left > (_UNWAITED_STEPS - 1) * DELAY_SECONDS / 2
    yield Proof(f"{name}: it is noticed in a timed round", f"{1e3 * left:.0f} ms of work left over", "seen", noticed)


def _prove_memory(launcher: Launcher, child: Child, run: ContenderRun) -> Iterator[Proof]:
    device = launcher.plan.device
    name = f"{run.contender.backend} on {device}"

    def figures() -> dict[str, int]:
        use = child.call(MeasureMemory(_MEMORY_STEPS))
        sizes = {figure: getattr(use.framework, figure) for figure in _FIGURES} | {"process_bytes": use.process}
        return {figure: size for figure, size in sizes.items() if size is not None}

    child.call(Open(launcher.spec(run)))
    figures()  # compiles, which also takes memory
    # A small ballast first, because the first one takes additional memory.
    child.call(Ballast(_FIRST_BALLAST_BYTES, device))
    before = figures()
    child.call(Ballast(BALLAST_BYTES, device))
    after = figures()
    for figure, size in after.items():
        grown = size - before[figure] + _FIRST_BALLAST_BYTES
        held = abs(grown - BALLAST_BYTES) <= BALLAST_LIMIT * BALLAST_BYTES
        label = f"{name}: 1 GiB of ballast in {figure.removesuffix('_bytes').replace('_', ' ')}"
        yield Proof(label, f"{grown / 2**30:.4f} GiB more", f"within {BALLAST_LIMIT:.0%}", held)
    if device == "cuda" and "pool_peak_bytes" in before:
        part = before["pool_peak_bytes"] / _device_bytes()
        name = f"{name}: nothing is allocated beforehand"
        yield Proof(name, f"the pool has {part:.1%} of the device", f"below {_PREALLOCATED:.0%}", part < _PREALLOCATED)


def render(proofs: Sequence[Proof], console: Console) -> None:
    """Print every proof with its value, its limit and whether it held, and then how many held or failed."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("proof", "found", "limit", ""):
        table.add_column(column, overflow="fold")
    for proof in proofs:
        table.add_row(Text(proof.name), Text(proof.found), Text(proof.limit), _OUTCOMES[proof.held])
    console.print(table)
    failed = sum(proof.held is False for proof in proofs)
    if failed:
        conclusion = f"{failed} of {len(proofs)} proofs failed; if the machine had other work, run it again"
    elif impossible := sum(proof.held is None for proof in proofs):
        conclusion = f"{len(proofs) - impossible} of {len(proofs)} proofs held, {impossible} not possible here"
    else:
        conclusion = f"all of {len(proofs)} proofs held"
    console.print(Text(f"\n{conclusion}"))


def _device_bytes() -> int:
    gpu = Device()
    try:
        return gpu.memory_bytes()
    finally:
        gpu.close()
