"""Compare the same contenders on more and more devices, with one comparison for each number of devices."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compare.base import knobs, output
from compare.base.early_stopping import MOST_ROUNDS
from compare.base.interface import Refused
from compare.base.interruptions import ENDING
from compare.data import datasets
from compare.execution import execute
from compare.machine import nvml
from compare.report.sentences import count_noun
from compare.results.model import Result
from compare.results.verdicts import LEAST_ROUNDS
from compare.settings import block_order, contenders, plan, tasks, tunings
from compare.settings.contenders import Contender
from compare.settings.options import Settings
from compare.settings.plan import Plan
from compare.studies.scaling_model import STRONG, WEAK

WAYS = "ddp,sharded"
"""The default of the option --parallel: how contenders split a batch over devices."""

MOST_COUNTS = 16


@dataclass(frozen=True)
class Task:
    """The comparisons that `run` makes. Build a task with `make`, which refuses impossible ones.

    Attributes:
        plans: a comparison for each number of devices, fewest first.
        ways: the value of the knob `parallel` of each contender.
        mode: one of `compare.studies.scaling_model.MODES`.
        batch_size: images per step, of each device in weak scaling, of all together in strong.
        out: folder of the result. Each plan has a folder of its own in it.
    """

    plans: tuple[Plan, ...]
    ways: tuple[str, ...]
    mode: str
    batch_size: int
    out: Path


def parse_counts(text: str) -> list[int]:
    """Return the numbers of devices of the option --devices, written 1,2,4.

    Raises:
        Refused: the text is not two or more increasing whole numbers.
    """
    parts = text.split(",")
    counts = [int(part) if part.isascii() and part.isdigit() and len(part) <= 4 else 0 for part in parts]
    increasing = all(first < second for first, second in itertools.pairwise(counts))
    if not 2 <= len(counts) <= MOST_COUNTS or counts[0] < 1 or not increasing:
        raise Refused(
            f"--devices {text!r} is not allowed; allowed: 2 to {MOST_COUNTS} whole numbers from 1 to 9999 that "
            "increase, joined by ',', for example 1,2,4"
        )
    return counts


def make(settings: Settings, devices: Sequence[int], *, strong: bool = False) -> Task:
    """Return the task for a user's settings. Every contender must have a way to use several devices.

    Args:
        settings: the settings of a user. The batch size is that of each device, or of all devices in strong scaling.
        devices: the numbers of devices (`parse_counts`).
        strong: whether all devices together share one batch.

    Raises:
        Refused: for impossible settings, before any process starts.
    """
    tasks.refuse_inference(settings, "scale")
    settings = plan.spell_contenders(settings, parallel=WAYS)
    workload, device = plan.resolve(settings)
    size = workload.batch_size if settings.batch_size is None else settings.batch_size
    out = plan.make_default_out() if settings.out is None else Path(settings.out)
    for count in devices if strong else ():
        if size % count:
            allowed = f"a multiple of {math.lcm(*devices)}"
            raise Refused(f"--batch-size {size} on {count} devices is not allowed with --strong; allowed: {allowed}")
    # Rounds rotate only over GPUs of one model. The parts of a CPU are alike.
    rotates = device == "cuda" and len({gpu["name"] for gpu in nvml.describe()["gpus"]}) == 1
    ways = tuple(_way(each, device, workload.name) for each in contenders.parse(settings.contenders or ()))
    folder = None if settings.data is None else str(settings.data)
    plans: list[Plan] = []
    for count in reversed(devices):  # a plan that the most devices allow is allowed on fewer
        shared = plans and (strong or not datasets.is_made_for_batch(workload, folder))
        on_devices = replace(
            settings,
            out=out / f"devices-{count}",
            devices=count,
            rotation=devices[-1] if rotates and block_order.count_parts(count, devices[-1]) > 1 else 1,
            batch_size=size if strong else size * count,
            energy=False,
            communication=True,
            rounds=settings.rounds or MOST_ROUNDS,  # each number of devices has as many, for an equal weight
        )
        try:
            plans.insert(0, plan.make(on_devices, dataset=plans[0].dataset if shared else None))
        except datasets.BatchTooLarge as error:
            whose = "" if strong else f"{size} images on each of {count} devices: "
            raise Refused(f"{whose}{error}") from error
    output.make_folder(out)
    return Task(tuple(plans), ways, STRONG if strong else WEAK, size, out)


def run(task: Task, command: Sequence[str]) -> tuple[list[tuple[Result, Path]], BaseException | None]:
    """Run the comparison on every number of devices. Return results and files in order, and an interruption.

    A contender that fails on one number of devices still runs on the others. An interruption is Ctrl-C or a signal that
    ends the program. The results before it are returned. An interrupted result is returned too, if it has enough rounds
    for a ratio, and otherwise stays in its own folder.
    """
    completed = list[tuple[Result, Path]]()
    for each in task.plans:
        part = f"{count_noun(each.devices, 'device')}: "
        try:
            result, path, interruption = execute.execute_until_interrupted(each, command, part=part)
        except ENDING as error:
            return completed, error
        if interruption is None or result.spec.rounds >= LEAST_ROUNDS:
            completed.append((result, path))
        if interruption is not None:
            return completed, interruption
    return completed, None


def _way(contender: Contender, device: str, workload: str) -> str:
    way = tunings.resolve(contender.backend, contender.tuning, device, workload)["parallel"]
    if way == knobs.NOT_PARALLEL:
        raise Refused(
            f"{contender.name} does not say how it uses several devices; allowed: --parallel WAY, or +WAY in its tuning"
        )
    return str(way)
