"""`samestep scale`: the same contenders on more and more devices, a comparison for each number of devices."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compare.base import knobs
from compare.base.interface import Refused
from compare.base.interruptions import ENDING
from compare.data import datasets
from compare.execution import execute
from compare.machine import nvml
from compare.report.sentences import counted
from compare.results import model
from compare.results.verdicts import LEAST_ROUNDS
from compare.settings import block_order, contenders, plan, tunings
from compare.settings.contenders import Contender
from compare.settings.options import Settings
from compare.settings.plan import Plan

WAYS = "ddp,sharded"
"""How contenders that do not say so split a batch over devices, as the option --parallel has it."""

MOST_COUNTS = 16


@dataclass(frozen=True)
class Task:
    """What `run` carries out. Build it with `make`, which refuses what cannot be done.

    Attributes:
        plans: a comparison for each number of devices, from the fewest on.
        ways: the value of the knob `parallel` of each contender.
        mode: one of `compare.studies.efficiency.MODES`.
        batch_size: images per step, of each device in weak scaling, of all together in strong.
        out: folder of the result; each plan has a folder of its own in it.
    """

    plans: tuple[Plan, ...]
    ways: tuple[str, ...]
    mode: str
    batch_size: int
    out: Path


def counts(text: str) -> list[int]:
    """Return the numbers of devices of the option --devices, written 1,2,4.

    Raises:
        Refused: for what is not two or more whole numbers that increase.
    """
    parts = text.split(",")
    found = [int(part) if part.isascii() and part.isdigit() and len(part) <= 4 else 0 for part in parts]
    increasing = all(first < second for first, second in itertools.pairwise(found))
    if not 2 <= len(found) <= MOST_COUNTS or found[0] < 1 or not increasing:
        raise Refused(
            f"--devices {text!r} is not allowed; allowed: 2 to {MOST_COUNTS} whole numbers from 1 to 9999 that "
            "increase, joined by ',', for example 1,2,4"
        )
    return found


def make(settings: Settings, devices: Sequence[int], *, strong: bool = False) -> Task:
    """Return the task for what a user asks for; every contender must have a way to use several devices.

    `devices` are the numbers of devices (`counts`). The batch size is that of each device or, in `strong` scaling, of
    all together.

    Raises:
        Refused: for anything that cannot be done, before any process starts.
    """
    settings = plan.spell_contenders(settings, parallel=WAYS)
    workload, device = plan.resolve(settings)
    size = workload.batch_size if settings.batch_size is None else settings.batch_size
    out = plan.default_out() if settings.out is None else Path(settings.out)
    for count in devices if strong else ():
        if size % count:
            raise Refused(f"--batch-size {size} on {count} devices is not allowed with --strong; allowed: equal parts")
    # Parts of a CPU are alike; GPUs of unlike kinds have no mean, and the first are taken.
    goes_around = device == "cuda" and len({gpu["name"] for gpu in nvml.describe()["gpus"]}) == 1
    ways = tuple(_way(each, device, workload.name) for each in contenders.parse(settings.contenders or ()))
    folder = None if settings.data is None else str(settings.data)
    plans: list[Plan] = []
    for count in reversed(devices):  # what the most devices can do, fewer can: nothing is refused after the first
        shared = plans and (strong or not datasets.is_made_for_batch(workload, folder))
        on_devices = replace(
            settings,
            out=out / f"devices-{count}",
            devices=count,
            rotation=devices[-1] if goes_around and block_order.count_parts(count, devices[-1]) > 1 else 1,
            batch_size=size if strong else size * count,
            energy=False,
            communication=True,
        )
        try:
            plans.insert(0, plan.make(on_devices, dataset=plans[0].dataset if shared else None))
        except datasets.BatchTooLarge as error:
            whose = "" if strong else f"{size} images on each of {count} devices: "
            raise Refused(f"{whose}{error}") from error
    return Task(tuple(plans), ways, "strong" if strong else "weak", size, out)


def run(task: Task, command: Sequence[str]) -> tuple[list[tuple[dict[str, Any], Path]], BaseException | None]:
    """Carry out the comparison of every number of devices; return each one's result with its file, in order.

    A contender that fails on some number of devices has failed there only. Ctrl-C or a signal that ends the program is
    returned beside what was finished before it, in which a number counts of which enough rounds are whole for a ratio;
    with fewer its result stays in its own folder.
    """
    found = list[tuple[dict[str, Any], Path]]()
    for each in task.plans:
        part = f"{counted(each.devices, 'device')}: "
        try:
            result, path, interruption = execute.execute_until_interrupted(each, command, part=part)
        except ENDING as error:
            return found, error
        if interruption is None or result.spec.rounds >= LEAST_ROUNDS:
            found.append((model.to_json(result), path))
        if interruption is not None:
            return found, interruption
    return found, None


def _way(contender: Contender, device: str, workload: str) -> str:
    way = tunings.resolve(contender.backend, contender.tuning, device, workload)["parallel"]
    if way == knobs.NOT_PARALLEL:
        raise Refused(
            f"{contender.name} does not say how it uses several devices; allowed: --parallel WAY, or +WAY in its tuning"
        )
    return str(way)
