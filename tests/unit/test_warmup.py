import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import psutil
import pytest

from compare.base.commands import ModelInfo
from compare.base.interface import INFER
from compare.base.statistics import change_point
from compare.execution import simulation, timed_round
from compare.execution.run_state import ContenderRun
from compare.execution.simulation import Machine
from compare.machine import cpu
from compare.settings.contenders import Contender
from compare.worker import warm_up


class Blocks:
    """Times that are played back, with normal noise."""

    def __init__(self, times: Iterable[float], noise: float = 0.002) -> None:
        self._times, self._noise = iter(times), noise
        self._random = np.random.default_rng(5)
        self.taken = 0

    def __call__(self, steps: int) -> float:
        self.taken += 1
        return steps * next(self._times) * float(np.exp(self._random.normal(0, self._noise)))


@pytest.mark.parametrize(("seconds", "count"), [(0.003, 16), (0.099, 16), (0.2, 12)])
def test_a_flat_series_is_settled_at_once(seconds: float, count: int):
    blocks = Blocks(itertools.repeat(seconds / 10))
    found, settled = warm_up.settle(blocks, 10)
    assert settled
    assert len(found) == blocks.taken == count


def test_warming_up_is_over_when_the_slow_blocks_have_left_the_tail():
    blocks = Blocks(0.01 * factor for factor in itertools.chain([1.5] * 8, [1.2] * 8, itertools.repeat(1.0)))
    found, settled = warm_up.settle(blocks, 1)
    assert settled
    assert 26 <= len(found) <= 28  # 16 and up to four of the slower level in the tail
    assert max(found[-11:]) < 0.0105


def test_long_slow_blocks_leave_the_tail_too():
    blocks = Blocks(itertools.chain([1.5] * 8, itertools.repeat(1.0)))
    found, settled = warm_up.settle(blocks, 1)
    assert settled
    assert 17 <= len(found) <= 20  # up to three of the slower level in the tail


def test_a_series_that_never_settles_is_said_not_to():
    blocks = Blocks(1.02**n for n in range(100))
    found, settled = warm_up.settle(blocks, 1)
    assert not settled
    assert len(found) == 64


def test_a_change_too_small_to_matter_does_not_delay():
    blocks = Blocks(itertools.chain([0.01005] * 8, itertools.repeat(0.01)), noise=0.0)
    assert len(warm_up.settle(blocks, 1)[0]) == 16


@pytest.mark.parametrize("before", [[1.0], [0.02] * 12, []], ids=["a hiccup", "slow at first", "steady"])
def test_the_length_that_is_chosen_lasts_as_long_when_times_have_settled(before: list[float]):
    blocks = Blocks(itertools.chain(before, itertools.repeat(0.003)))
    steps, taken, settled = warm_up.choose_block_length(blocks, 4, 0.1)
    assert settled
    assert steps % 4 == 0
    assert 0.1 <= steps * 0.003 < 0.2
    assert len(taken) >= 16
    assert np.median(taken) * steps / warm_up.shorten(steps, 4, 0.1) >= 0.1


def test_a_length_that_is_chosen_beside_another_program_lasts_as_long_when_that_ends():
    blocks = Blocks(itertools.cycle(5 * [0.006] + [0.003]), noise=0.0)
    steps, _, _ = warm_up.choose_block_length(blocks, 1, 0.1)
    assert 0.1 <= steps * 0.003 < 0.25


@pytest.mark.parametrize(
    ("chosen", "units", "equal"),
    [
        ([4, 5], [1, 1], [5, 5]),
        ([8, 11, 16, 40], [1, 1, 1, 1], [16, 16, 16, 40]),
        ([20, 24, 7], [1, 24, 1], [24, 24, 7]),
        ([48, 50], [24, 1], [48, 50]),
    ],
)
def test_contenders_of_about_the_same_speed_have_blocks_of_equally_many_steps(
    chosen: list[int], units: list[int], equal: list[int]
):
    runs = [
        ContenderRun(cast(Contender, None), model=ModelInfo("", 1, unit), steps_per_block=steps)
        for steps, unit in zip(chosen, units, strict=True)
    ]
    timed_round.equalise_block_lengths(runs)
    assert [run.steps_per_block for run in runs] == equal


def test_a_warm_up_takes_shorter_blocks_than_a_round_if_these_are_long():
    assert warm_up.shorten(400, 4, 0.1) == 100
    assert warm_up.shorten(400, 4, 0.1, INFER) == 20
    assert warm_up.shorten(400, 4, 0.02) == 400
    assert warm_up.shorten(8, 8, 0.1) == 8


def test_a_length_that_was_too_short_is_not_tried_again():
    blocks = Blocks(itertools.chain([0.2], itertools.repeat(0.085)), noise=0.0)
    assert warm_up.choose_block_length(blocks, 1, 0.1)[0] == 2
    assert blocks.taken == 17 + 17  # of one step, and of two


def test_blocks_last_at_least_as_long_as_asked():
    blocks = Blocks(itertools.repeat(0.003), noise=0.0)
    steps = warm_up.find_block_length(blocks, 4, 0.1, 4)
    assert steps % 4 == 0
    assert 0.1 <= steps * 0.003 <= 0.2


def test_the_change_point_is_found_where_it_is():
    change = change_point([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.0])
    assert change.index == 7
    assert change.shift == pytest.approx(1.0, rel=0.02)
    # Pettitt's approximation for K = 49, n = 14.
    assert change.probability == pytest.approx(2 * np.exp(-6 * 49**2 / (14**3 + 14**2)))
    assert change_point([1.0] * 12).probability == 1.0


def test_noise_alone_rarely_counts_as_a_change():
    random = np.random.default_rng(1)
    found = [change_point(list(np.exp(random.normal(0, 0.01, 12)))).probability < 0.05 for _ in range(1000)]
    assert sum(found) <= 50


@pytest.mark.parametrize("values", [[1.0], [1.0, 0.0], [1.0, float("nan")]])
def test_a_series_without_a_change_point_is_refused(values: list[float]):
    with pytest.raises(ValueError, match="values"):
        change_point(values)


def test_a_drift_that_is_linear_cancels_and_a_design_without_alternation_would_show_it():
    drift = Machine(launch_noise=0.0, step_noise=0.0, drift=0.5)
    ratio = simulation.run_trial(np.random.default_rng(0), drift, rounds=4)
    assert ratio.estimate == pytest.approx(1, abs=1e-3)


def wait_for_work(pid: int, seconds: float) -> float:
    """Wait until a process has worked for so long, however busy the machine is. Return the seconds that it took."""
    before = process_seconds(pid)
    while (taken := process_seconds(pid) - before) < seconds:
        time.sleep(0.01)
    return taken


def process_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def test_another_program_on_the_cpu_is_seen_and_a_child_is_not():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            before, blind = cpu.read([]), cpu.read([other.pid])
            worked = wait_for_work(other.pid, 0.5)
            after, aware = cpu.read([]), cpu.read([other.pid])
        finally:
            other.kill()
    foreign = cpu.count_foreign_cores(before, after) * (after.time - before.time)
    own = cpu.count_foreign_cores(blind, aware) * (aware.time - blind.time)
    assert foreign > 0.5 * worked
    assert own < foreign - 0.5 * worked


def test_what_a_child_took_is_not_another_programs_when_it_has_ended():
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        before = cpu.read([child.pid])
        child.kill()
        child.wait()
        assert cpu.read([child.pid]).own > before.own - 0.005  # sums of hundredths, rounded


@contextmanager
def parent() -> Generator[tuple[int, int]]:
    """Run a child that has started another, which is busy. Yield the ids of both."""
    busy = "import os; print(os.getpid(), flush=True)\nwhile True: pass"
    code = f"import subprocess; subprocess.run({[sys.executable, '-c', busy]!r})"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            yield child.pid, int(child.stdout.readline())
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_what_a_child_has_started_is_not_another_program():
    with parent() as (child, started):
        before = cpu.read([child])
        worked = wait_for_work(started, 0.2)
        after = cpu.read([child])
    assert after.own - before.own > 0.5 * worked


def test_what_ticks_cannot_tell_is_none():
    assert cpu.count_foreign_cores(cpu.Reading(0, 1.0, 0.5), cpu.Reading(0.1, 1.14, 0.6)) == 0
    assert cpu.count_foreign_cores(cpu.Reading(0, 1.0, 0.5), cpu.Reading(0.5, 1.9, 0.9)) == pytest.approx(1.0)


def test_what_a_child_and_those_that_it_has_started_take_is_told_for_moments():
    with parent() as (child, started):
        family = cpu.list_family(child)
        idle, taken, ratios = cpu.sum_seconds([child]), list[float](), list[float]()
        for seconds in (0.1, 0.03, 0.06):
            before = cpu.sum_seconds(family)
            worked = wait_for_work(started, seconds)
            taken.append(cpu.sum_seconds(family) - before)
            ratios.append(taken[-1] / worked)
        alone = cpu.sum_seconds([child]) - idle
    assert ratios[0] == pytest.approx(1, abs=0.25)
    in_ticks = [abs(100 * each - round(100 * each)) < 1e-6 for each in taken]
    assert sys.platform != "linux" or not all(in_ticks), "counted in ticks"
    assert alone < 0.005
    assert set(family) == {child, started}
    assert cpu.sum_seconds([child]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all CPUs are read")
@pytest.mark.parametrize(
    ("allowed", "seen"),
    [
        pytest.param({0, 2, 4}, 42, id="some are offline"),
        pytest.param({4}, 24, id="one is allowed"),
        pytest.param({8, 9, 11}, 42, id="a container numbers them anew"),
        pytest.param({2, 11}, 42, id="one number is in both"),
    ],
)
def test_cpus_are_read_by_their_numbers(
    allowed: set[int], seen: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = ["cpu  9 9 9 9 9 9 9 9 9 9", "intr 7 0", "ctxt 9"]
    for number, seconds in {0: 1, 2: 2, 4: 4}.items():
        each = seconds * os.sysconf("SC_CLK_TCK")
        # user nice system idle iowait irq softirq steal guest guest_nice
        lines.insert(-2, f"cpu{number} {each} {each} {each} 7000 8000 {each} {each} {each} 900 900")
    (tmp_path / "stat").write_text("\n".join(lines))
    monkeypatch.setattr(cpu, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert cpu.read([]).busy == seen
