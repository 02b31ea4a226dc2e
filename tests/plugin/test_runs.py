"""Comparisons that suites really make, with the fake backends: real runner, processes and judgement, scripted time."""

from itertools import chain
from typing import Any

import pytest

from compare.results import result_file
from tests.fakebackend import plans
from tests.plugin.suites import SUITE, Suite, rows

pytest_plugins = ["pytester"]

NOISE = {"launch_noise": 0.001, "step_noise": 0.003}
SCRIPT = {"fake": {"step_seconds": 0.004, "seed": 1, **NOISE}, "other": {"step_seconds": 0.002, "seed": 2, **NOISE}}
REPORTED = ["--benchmark", "--samestep-rounds=3", "--samestep-report=reports"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    suite = Suite(pytester, monkeypatch)
    suite.environment(plans.environment(suite.folder, SCRIPT))
    suite.write(SUITE)
    return suite


def reported(suite: Suite) -> dict[str, Any]:
    """Return the one result below reports/, after checks of what lies there and what still runs."""
    path = suite.only("reports/*/result.json")
    assert path.parent.name.startswith("digits-cnn-fake-other-")
    assert "images/s" in (path.parent / "report.txt").read_text()
    result = result_file.load(path)
    assert result["command"][0] == "pytest"
    assert set(REPORTED) <= set(result["command"])
    assert not plans.remaining(plans.started(suite.folder))
    return result


ONCE = 12
"""Processes of one comparison: for each of two contenders, training, certificate, memory and three rounds."""


def test_one_comparison_serves_both_forms_and_is_replayed_as_measured(suite: Suite) -> None:
    suite.run(*REPORTED, "--benchmark-json=saved.json", made_up=False).assert_outcomes(passed=4)
    assert len(plans.started(suite.folder)) == ONCE
    result = reported(suite)
    found = rows(suite.json("saved.json"))
    for contender in result["contenders"]:
        blocks = list(chain.from_iterable(contender["step_seconds"]["samples"]))
        assert len(blocks) == 18
        assert found[f"test_step[{contender['name']}]"]["stats"]["data"] == blocks
    assert result["comparisons"][0]["ratio"]["estimate"] == pytest.approx(0.5, rel=0.01)
    assert found["test_step[other]"]["extra_info"]["samestep"] == result["id"]


@pytest.mark.slow
def test_workers_of_xdist_share_one_comparison(suite: Suite) -> None:
    result = suite.run(*REPORTED, "-n", "2", made_up=False)
    result.assert_outcomes(passed=4)
    assert len(plans.started(suite.folder)) == ONCE
    assert reported(suite)["comparisons"][0]["verdict"] == "FASTER"
    assert result.stdout.str().count("images/s") == 1
    result.stdout.fnmatch_lines(["result file: */reports/digits-cnn-fake-other-*/result.json"])


@pytest.mark.slow
def test_a_failed_contender_and_a_wrong_one_fail_their_tests(suite: Suite) -> None:
    faults = {"other": {"fault": "exit", "at": "open"}, "third": {"fault": "wrong-gradient"}}
    suite.environment(plans.environment(suite.folder, faults))
    suite.write(
        """
        import pytest

        CRASHES, DIFFERS = ({"contenders": ["fake", name], "epochs": 1} for name in ("other", "third"))

        def test_crash(samestep):
            samestep(**CRASHES)

        @pytest.mark.samestep(**CRASHES)
        def test_row(contender):
            pass

        def test_wrong(samestep):
            samestep(**DIFFERS)

        def test_unchecked(samestep):
            crashed, differing = samestep(**CRASHES, check=False), samestep(**DIFFERS, check=False)
            assert crashed.contender("other").status == "crash"
            assert crashed.contender("fake").images_per_second > 0
            assert (differing.agreement, differing.verdict("third")) == ("fail", "INVALID")
        """
    )
    result = suite.run("--benchmark", "--samestep-rounds=3", "--samestep-device=cpu", made_up=False)
    result.assert_outcomes(passed=1, failed=2, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_row?other?*",
            "samestep: other failed (crash): *: ended with exit code 7*",
            "*test_crash*",
            "samestep: other failed (crash): *: ended with exit code 7*",
            "*test_wrong*",
            "samestep: third against fake: INVALID, *: no agreement with fake: step1/gradient/dense.kernel *",
        ]
    )
    assert not plans.remaining(plans.started(suite.folder))
