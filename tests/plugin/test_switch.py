"""What switches comparisons on and off, beside pytest-benchmark and without it. Results are made up."""

from typing import Any

import pytest

from tests.plugin.suites import SUITE, Suite

pytest_plugins = ["pytester"]

# Beside pytest-benchmark, with it blocked, with every other plugin absent, and under pytest-xdist.
BESIDE: list[list[str]] = [[], ["-p", "no:benchmark"], ["--disable-plugin-autoload", "-p", "samestep"]]
PARALLEL: list[Any] = [  # a run under pytest-xdist in test_runs.py shows most of it
    pytest.param(words, marks=pytest.mark.thorough) for words in (["-n", "2"], ["-n", "2", "-p", "no:benchmark"])
]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    suite = Suite(pytester, monkeypatch)
    suite.write(SUITE)
    return suite


@pytest.mark.parametrize("others", BESIDE, ids=" ".join)
def test_comparisons_are_skipped_by_default(suite: Suite, others: list[str]) -> None:
    off = suite.run(*others, "-rs")
    off.assert_outcomes(passed=1, skipped=3)
    off.stdout.fnmatch_lines(["SKIPPED*a comparison: `pytest --benchmark` runs it"])
    off.stdout.no_fnmatch_line("*= samestep =*")
    assert not suite.comparisons()


@pytest.mark.parametrize("others", BESIDE + PARALLEL, ids=" ".join)
def test_the_switch_has_them_made_and_reported(suite: Suite, others: list[str]) -> None:
    on = suite.run(*others, "--benchmark", "-rs")
    on.assert_outcomes(passed=4)
    on.stdout.fnmatch_lines(
        [
            "*= samestep =*",
            "digits-cnn trained on cpu*float32*",
            "*fake * other*",
            "compile (s) *12.3 *12.3",
            "images/s *25,600*",
            "process (MiB) *300.0 *",
            "other is 1.43 times as fast as fake (ratio 0.699, *",
            "* rounds): FASTER; *",
            "agreement in float32: pass",
        ]
    )
    assert len(suite.comparisons()) == 1


@pytest.mark.parametrize("others", BESIDE, ids=" ".join)
def test_benchmark_only_is_enough(suite: Suite, others: list[str]) -> None:
    result = suite.run(*others, "--benchmark-only", "-rs")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*test_suite.py*--benchmark-only*"])
    result.stdout.fnmatch_lines(["other is 1.43 times as fast as fake *"])


def test_the_switch_is_that_word_and_no_other(suite: Suite) -> None:
    for others in BESIDE[:2]:
        assert suite.run(*others, "--benchm").ret == pytest.ExitCode.USAGE_ERROR
    assert suite.run("--benchmark-min-rounds=3").parseoutcomes() == {"passed": 1, "skipped": 3}


def test_benchmark_skip_skips_comparisons_too(suite: Suite) -> None:
    suite.run("--benchmark", "--benchmark-skip").assert_outcomes(passed=1, skipped=3)
    assert not suite.comparisons()


def test_benchmark_disable_leaves_our_table(suite: Suite) -> None:
    result = suite.run("--benchmark", "--benchmark-disable")
    result.assert_outcomes(passed=4)
    result.stdout.no_fnmatch_line("*benchmark 'digits-cnn*")
    result.stdout.fnmatch_lines(["other is 1.43 times as fast as fake *"])
    assert suite.run("--benchmark-disable").parseoutcomes() == {"passed": 1, "skipped": 3}


def test_without_the_switch_nothing_is_set_up_and_a_fixture_of_the_same_name_is_left_alone(suite: Suite) -> None:
    suite.write(
        """
        import pytest

        @pytest.fixture
        def costly():
            raise RuntimeError("set up in vain")

        def test_costly(costly, samestep):
            pass

        def test_asks_while_it_runs(request):
            request.getfixturevalue("samestep")()

        @pytest.fixture
        def contender():
            return "mine"

        def test_mine(contender):
            assert contender == "mine"
        """
    )
    suite.run().assert_outcomes(passed=1, skipped=2)


def test_options_fill_in_what_tests_leave_open(suite: Suite) -> None:
    suite.write(
        """
        CONTENDERS = ["fake", "other"]

        def test_open(samestep):
            assert samestep(contenders=CONTENDERS, epochs=1).raw["spec"]["workload"] == "cifar-cnn"

        def test_named(samestep):
            result = samestep("digits-cnn", contenders=CONTENDERS, epochs=1, rounds=3, precision="float32")
            assert result.raw["spec"]["workload"] == "digits-cnn"
        """
    )
    given = ["--samestep-workload=cifar-cnn", "--samestep-precision=float64", "--samestep-rounds=7"]
    suite.run("--benchmark", "--samestep-device=cpu", *given).assert_outcomes(passed=2)
    assert suite.comparisons() == ["['fake', 'other'] 7 float64", "['fake', 'other'] 3 float32"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--samestep-workload=digits", "unknown workload 'digits'; did you mean 'digits-cnn'?"),
        ("--samestep-precision=fp8", "--samestep-precision 'fp8' is not allowed; allowed: float64, "),
        ("--samestep-precision=tf32 --samestep-device=cpu", "precision tf32 needs --samestep-device cuda"),
        ("--samestep-rounds=ten", "--samestep-rounds: invalid int value: 'ten'"),
        ("--samestep-report=test_suite.py", "--samestep-report *test_suite.py: cannot be made: File exists; allowed:"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_a_usage_error(suite: Suite, options: str, said: str) -> None:
    result = suite.run("--benchmark", *options.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}*"])
