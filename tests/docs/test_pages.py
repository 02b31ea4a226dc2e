"""The pages are as the code and the evidence say, and the site builds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import tables
from compare.reproduce import bundle, verification
from docs import generate
from tests.docs import pages
from tests.fakebackend.plans import ROOT
from tests.plugin.suites import Suite

pytest_plugins = ["pytester"]

BUNDLES = sorted((ROOT / "benchmarks").glob("*/**/*.zip"))
EVIDENCE_LIMIT = 15e6
JAX_WINS = ROOT / "benchmarks" / "h200" / "cifar-cnn-bfloat16.zip"
TORCH_WINS = ROOT / "benchmarks" / "cpu" / "cifar-cnn-float32.zip"


def test_the_measured_page_is_what_the_evidence_makes() -> None:
    page = tables.page()
    assert page == tables.PAGE.read_text()
    for table in page.split("\n## ")[1:]:
        assert table.count("\n| ") > 2, "a table has no rows"


@pytest.mark.slow
@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.stem)
def test_the_evidence_holds(path: Path) -> None:
    _, checks = verification.verify(path.read_bytes())
    assert [check.question for check in checks if check.problems] == []


def test_the_evidence_is_small() -> None:
    files = [path for path in (ROOT / "benchmarks").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < EVIDENCE_LIMIT


@pytest.mark.parametrize(
    ("block", "file", "words", "verdict"),
    [(0, JAX_WINS, "JAX wins", "FASTER"), (1, TORCH_WINS, "PyTorch wins", "SLOWER")],
)
def test_the_readme_shows_the_reports_of_its_bundles(block: int, file: Path, words: str, verdict: str) -> None:
    report = bundle.write_report(bundle.read_result(file.read_bytes()))
    shown = pages.blocks("README.md", "text")[block]
    assert set(shown.split()) <= set(report.split())
    assert words in (ROOT / "README.md").read_text()
    assert f"{verdict};" in shown


@pytest.mark.parametrize(("page", "tests"), [("README.md", 1), ("docs/tutorials/gate-ci.md", 3)])
def test_the_suites_of_a_page_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, page: str, tests: int
) -> None:
    suite = Suite(pytester, monkeypatch)
    suite.write("\n".join(block for block in pages.blocks(page, "python") if "def test_" in block))
    suite.environment({"MADE_UP_NO_PEAKS": ""})
    suite.run("--benchmark", "--samestep-device=cpu").assert_outcomes(passed=tests)


def test_the_support_matrix_says_what_the_code_refuses() -> None:
    page = generate.support()
    assert "| `tf32` | no | yes |" in page
    assert str(generate.refusal("torch", "cpu", ["graph-capture"])) in page
    assert generate.accepted_with("torch", "cuda", "concurrent-kernels") == ("compile",)


def test_the_generated_pages_say_what_the_code_says() -> None:
    folder = ROOT / "docs" / "reference"
    stale = [name for name, text in generate.pages().items() if (folder / f"{name}.md").read_text() != text]
    assert stale == [], "make docs writes these pages anew: commit them"


def test_every_link_leads_to_a_file() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)


def test_every_file_that_contributing_names_exists() -> None:
    names = re.findall(r"`((?:compare|tests|benchmarks|docs)/[^`\s]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(names) > 15
    assert not [name for name in names if not (ROOT / name).exists()]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "resnet50" in (tmp_path / "reference" / "workloads.html").read_text()
