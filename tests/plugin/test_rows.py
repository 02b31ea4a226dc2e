"""Contenders as rows of the real pytest-benchmark: its table, files and options. Results are made up."""

import json
from itertools import chain

import pytest

from tests.plugin import made_up
from tests.plugin.suites import SETTINGS, SUITE, Suite, rows

pytest_plugins = ["pytester"]

GROUP = "digits-cnn float32 batch 64"
NAMES = ["test_step[fake]", "test_step[other]"]
CALLED = ["test_ratio[fake]", "test_ratio[other]"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    suite = Suite(pytester, monkeypatch)
    suite.write(SUITE)
    return suite


def measured(contender: int, rounds: slice = slice(None)) -> list[float]:
    return list(chain.from_iterable(made_up.blocks(contender)[rounds]))


# Each of these would show in the rows if anything were timed, warmed up or repeated here.
TIMING = (
    "--benchmark-timer=time.process_time --benchmark-warmup=on --benchmark-min-rounds=50 --benchmark-disable-gc "
    "--benchmark-cprofile=tottime --benchmark-precision=0.01"
)


def test_rounds_are_the_measured_blocks_to_the_last_bit_beside_the_machine_and_the_other_figures(suite: Suite) -> None:
    result = suite.run("--benchmark", "--benchmark-json=saved.json", *TIMING.split())
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([f"*benchmark '{GROUP}': 4 tests*", "test_step?other? *", "test_step?fake? *"])
    saved = suite.json("saved.json")
    by_name = rows(saved)
    assert sorted(by_name) == [*CALLED, *NAMES]
    for index, name in enumerate(by_name):
        row, number = by_name[name], index % 2
        assert row["stats"]["data"] == measured(number)
        assert (row["stats"]["rounds"], row["stats"]["iterations"], row["group"]) == (12, 1, GROUP)
        assert row["params"] == {"contender": ("fake", "other")[number]}
    assert len(suite.comparisons()) == 1
    machine = saved["machine_info"]["samestep"]
    assert machine.keys() == {"gpus", "driver", "cuda_driver", "packages"}
    assert {"numpy", "pytest-benchmark"} <= machine["packages"].keys()
    fake, other = (by_name[name]["extra_info"] for name in NAMES)
    assert fake["memory"] == {
        "live_peak_bytes": 12 * 2**20,
        "pool_peak_bytes": 24 * 2**20,
        "process_bytes": 300 * 2**20,
        "static_bytes": None,
    }
    assert (fake["contender"], fake["agreement"], fake["steps_per_block"]) == ("fake", "pass", 40)
    assert "verdict" not in fake
    assert (other["baseline"], other["verdict"], other["ratio"]["high"]) == ("fake", "FASTER", 0.711)


CALLS = f"""
import pytest

@pytest.mark.parametrize("seed", [0, 4])
def test_two(samestep, seed):
    for precision in ("float32", "float64", "float32"):
        samestep("digits-cnn", {SETTINGS}, seed=seed, precision=precision)

@pytest.mark.samestep("digits-cnn", {SETTINGS})
def test_both(contender, samestep):
    samestep()

@pytest.mark.benchmark(group="mine")
def test_invalid(samestep):
    samestep("digits-cnn", {SETTINGS}, seed=3, check=False)
    samestep("digits-cnn", {SETTINGS}, seed=5)
"""


def test_every_call_of_the_fixture_gives_rows_once_and_invalid_results_give_none(suite: Suite) -> None:
    suite.write(CALLS)
    suite.run("--benchmark", "--benchmark-json=saved.json").assert_outcomes(passed=5)
    by_name = rows(suite.json("saved.json"))
    two = [f"test_two[{seed}-{number}{name}]" for seed in (0, 4) for number in ("", "2-") for name in ("fake", "other")]
    both = [f"test_both[{name}]" for name in ("fake", "other")]
    assert list(by_name) == [*two, *both, "test_invalid[2-fake]", "test_invalid[2-other]"]
    row = by_name["test_two[4-2-other]"]
    assert (row["params"], row["param"]) == ({"seed": 4, "contender": "other"}, "4-2-other")
    assert row["fullname"] == "test_suite.py::test_two[4-2-other]"
    assert (row["extra_info"]["agreement"], row["extra_info"]["compile_seconds"]) == ("pass", 12.34)
    assert row["extra_info"]["memory"]["live_peak_bytes"] == 12 * 2**20
    assert by_name["test_invalid[2-fake]"]["group"] == "mine"


def test_without_the_switch_machine_info_is_pytest_benchmarks_own(suite: Suite) -> None:
    suite.write("def test_speed(benchmark): benchmark(int)")
    suite.run("--benchmark-json=saved.json").assert_outcomes(passed=1)
    assert "samestep" not in suite.json("saved.json")["machine_info"]


def test_a_saved_run_is_compared_with_and_a_slower_one_fails(suite: Suite) -> None:
    # pytest-benchmark warns if facts of the machine change. Here a CPU's clock stays, so only samestep's facts could.
    suite.hooks("def pytest_benchmark_generate_machine_info(): return {'cpu': 'the same'}")
    suite.run("--benchmark", "--benchmark-autosave").assert_outcomes(passed=4)
    path = suite.only(".benchmarks/*/0001_*.json")
    gate = ["--benchmark", "--benchmark-compare", "--benchmark-compare-fail=median:5%"]
    same = suite.run(*gate)
    assert same.ret == 0
    same.stdout.fnmatch_lines(["test_step?other? (NOW)*"])
    assert "samestep" in json.loads(path.read_text())["machine_info"]
    suite.environment({"MADE_UP_SLOWER": "1.06"})
    slower = suite.run(*gate)
    assert slower.ret != 0
    said = slower.stdout.str() + slower.stderr.str()
    assert "Performance has regressed" in said
    assert "test_step[other] (0001_" in said
    assert "test_step[fake] (0001_" not in said.partition("Performance has regressed")[2]
    slower.stdout.fnmatch_lines(["*= samestep =*", "agreement in float32: pass"])


def test_histograms_are_drawn(suite: Suite) -> None:
    suite.run("--benchmark", "--benchmark-histogram=plots/plot", "-W", "ignore").assert_outcomes(passed=4)
    drawing = suite.only("plots/*.svg").read_text()
    assert all(name in drawing for name in ("[fake]", "[other]"))


MARKED = f"""
import time

import pytest

def compared(**settings):
    return pytest.mark.samestep("digits-cnn", {SETTINGS}, **settings)

@compared()
@pytest.mark.benchmark(group="mine", timer=time.perf_counter)
def test_grouped(contender):
    pass

@compared()
def test_adds(contender, benchmark):
    benchmark.extra_info["mine"] = contender.name

@compared()
def test_set_up_before(benchmark, contender):
    pass

@compared(seed=1)
def test_void(contender):
    pass

@pytest.mark.samestep(contenders=["fake", "fake"], device="cpu", epochs=1)
def test_repeated(contender):
    pass
"""


def test_rows_are_those_of_their_own_test(suite: Suite) -> None:
    suite.write(MARKED)
    suite.run("--benchmark", "--benchmark-json=saved.json").assert_outcomes(passed=8, errors=2)
    by_name = rows(suite.json("saved.json"))

    # A group is the test's own, and its timer times nothing.
    assert {row["group"] for name, row in by_name.items() if name.startswith("test_grouped")} == {"mine"}
    assert by_name["test_grouped[other]"]["stats"]["data"] == measured(1)

    added = by_name["test_adds[fake]"]
    assert (added["extra_info"]["mine"], added["stats"]["data"]) == ("fake", measured(0))

    # A benchmark that is set up before the row could time it.
    assert not [name for name in by_name if name.startswith("test_set_up_before")]

    void = by_name["test_void[fake]"]
    assert void["stats"]["data"] == measured(0, slice(1, None))
    assert void["extra_info"]["voided"] == [{"round": 1, "reason": "a busy machine"}]

    assert {"test_repeated[fake]", "test_repeated[fake#2]"} <= by_name.keys()


def test_contenders_whose_times_must_not_be_compared_have_no_row(suite: Suite) -> None:
    mark = f"@pytest.mark.samestep('digits-cnn', {SETTINGS}, seed=3"
    suite.write(
        f"""
        import pytest

        {mark})
        def test_checked(contender):
            pass

        {mark}, check=False)
        def test_unchecked(contender):
            pass
        """
    )
    # pytest-benchmark warns that there is nothing to save.
    result = suite.run("--benchmark", "--benchmark-json=saved.json", "-W", "default")
    result.assert_outcomes(passed=2, errors=2)
    assert not (suite.folder / "saved.json").exists()
