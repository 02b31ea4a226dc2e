"""The suites that README.md and docs/pytest.md show, on a machine without a GPU. Results are made up."""

import re

import pytest

from tests.fakebackend.plans import ROOT
from tests.plugin.suites import Suite

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("page", ["README.md", "docs/pytest.md"])
def test_what_a_page_shows_passes_on_a_cpu(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, page: str):
    suite = Suite(pytester, monkeypatch)
    shown = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    tests = "\n".join(text for text in shown if "def test_" in text)
    suite.write(f"import pytest\n{tests}")
    suite.environment({"MADE_UP_NO_PEAKS": ""})
    suite.run("--benchmark", "--samestep-device=cpu").assert_outcomes(passed=3)
