"""What a test is told where there is nothing, or nothing good, to make assertions on. Results are made up."""

import pytest

from tests.plugin.suites import SETTINGS, Suite

pytest_plugins = ["pytester"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return Suite(pytester, monkeypatch)


# The call of a test, and the one line that says why the test fails.
CALLS = {
    "samestep('digits', CONTENDERS)": "E * TypeError: *positional argument*",
    "samestep('digits', contenders=CONTENDERS)": "samestep: unknown workload 'digits'; *",
    "samestep(5, contenders=CONTENDERS)": "samestep: workload 5 is not allowed; allowed: a name that *",
    "samestep(precision=5, contenders=CONTENDERS)": "samestep: precision 5 is not allowed; allowed: *",
    "samestep(rounds=1, contenders=CONTENDERS)": "samestep: rounds 1 is not allowed; allowed: a whole number from 2*",
    "samestep(batch_size=1, contenders=CONTENDERS)": "samestep: batch_size 1 is not allowed; *",
    "samestep(margin='1 %', contenders=CONTENDERS)": "samestep: margin '1 %' is not allowed; allowed: above 0 *",
    "samestep(margin=True, contenders=CONTENDERS)": "samestep: margin True is not allowed; *",
    "samestep(deadline='9', contenders=CONTENDERS)": "samestep: deadline '9' is not allowed; allowed: seconds above 0*",
    "samestep(energy='no', contenders=CONTENDERS)": "samestep: energy 'no' is not allowed; allowed: True, False*",
    "samestep(contenders=['fake'])": "samestep: a comparison needs at least two contenders, got 1: fake; *",
    "samestep(contenders=['fake', 'other:'])": "samestep: contender 'other:' has an empty tuning; *",
    "samestep(contenders='fake')": "E * TypeError: contenders='fake' is not allowed; allowed: a list such as *",
    "samestep(precison='float32')": "E * TypeError: samestep has no setting 'precison'; did you mean 'precision'? *",
    f"samestep({SETTINGS}).ratio('fake')": "E * LookupError: fake is the baseline, which the others are compared with",
    f"samestep({SETTINGS}).verdict('jax')": "E * LookupError: no contender 'jax' in this comparison; there are: *",
    f"samestep({SETTINGS}, seed=2).ratio('other')": "E * AssertionError: other against fake: INCONCLUSIVE, 2 of 2 *",
    f"samestep({SETTINGS}, seed=3)": "samestep: other against fake: INVALID, *: the semantic gate failed",
    f"samestep({SETTINGS}, seed=3, check=False).ratio('other')": "E * AssertionError: other against fake: INVALID, *",
}


def test_a_call_that_cannot_be_honoured_says_why_and_where(suite: Suite) -> None:
    tests = (f"def test_{number}(samestep):\n    {call}\n" for number, call in enumerate(CALLS))
    suite.write("CONTENDERS = ['fake', 'other']\n\n" + "\n".join(tests))
    result = suite.run("--benchmark")
    result.assert_outcomes(failed=len(CALLS))
    result.stdout.fnmatch_lines(list(CALLS.values()))
    # Of tracebacks, only the test's own line is shown.
    assert "asked.py" not in result.stdout.str()
    assert "result.py" not in result.stdout.str()


def test_what_need_not_fail_does_not(suite: Suite) -> None:
    suite.write(
        f"""
        import pytest

        def test_unchecked(samestep):
            assert samestep({SETTINGS}, seed=3, check=False).verdict("other") == "INVALID"

        def test_void(samestep):
            assert samestep({SETTINGS}, seed=2).verdict("other") == "INCONCLUSIVE"

        @pytest.mark.samestep({SETTINGS}, seed=3, check=False)
        def test_unchecked_row(contender):
            assert contender.status == "ok"

        @pytest.mark.samestep({SETTINGS})
        def test_marked(samestep):
            assert samestep().ratio("other").high == 0.711
            assert samestep(seed=2).verdict("other") == "INCONCLUSIVE"
        """
    )
    suite.run("--benchmark").assert_outcomes(passed=5)
    assert len(suite.comparisons()) == 3


def test_a_row_without_a_round_that_counts_or_without_the_marker_fails(suite: Suite) -> None:
    suite.write(
        f"""
        import pytest

        @pytest.mark.samestep({SETTINGS}, seed=2)
        def test_void(contender):
            pass

        def test_row(contender):
            pass
        """
    )
    result = suite.run("--benchmark")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(
        [
            "samestep: no time of fake counts: rounds 1 and 2 are void: a busy machine",
            "samestep: the fixture `contender` needs the marker: @pytest.mark.samestep(...)",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "arguments", "said"),
    [
        ("()", "", "takes neither `contender` (one test for each contender) nor `samestep`"),
        (
            "(precison='float32')",
            "contender",
            "samestep has no setting 'precison'; did you mean 'precision'? allowed: ",
        ),
        ("(contenders='jax')", "samestep", "contenders='jax' is not allowed; allowed: a list such as "),
        ("('digits-cnn', 'jax')", "contender", "takes from 0 to 1 positional arguments but 2 were given"),
    ],
)
def test_a_marker_that_cannot_be_honoured_stops_the_collection(
    suite: Suite, marker: str, arguments: str, said: str
) -> None:
    suite.write(f"import pytest\n\n@pytest.mark.samestep{marker}\ndef test_marked({arguments}):\n    pass\n")
    result = suite.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"test_suite.py::test_marked has the marker `samestep`, but *{said}*"])


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        (["--samestep-undecided", "fail"], {"failed": 1}),
        (["--samestep-undecided", "skip"], {"skipped": 1}),
    ],
)
def test_an_undecided_verdict_fails_or_skips_on_request(
    suite: Suite, options: list[str], outcome: dict[str, int]
) -> None:
    suite.write(f"def test_void(samestep):\n    samestep({SETTINGS}, seed=2)\n")
    suite.run("--benchmark", *options).assert_outcomes(**outcome)
