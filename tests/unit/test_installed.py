"""Workloads of installed packages: found by name, loaded in a process of their own, refused with the reason."""

import sys
from pathlib import Path

import pytest

from compare.base import installed
from compare.base.interface import Refused
from compare.base.workloads import PAIR
from compare.settings import plan
from compare.settings.options import Settings
from tests.fakebackend.plans import ROOT

MODULE = """
import compare

print("importing")
workload = compare.pair("a.b:c", "d.e:f", image="8x8x1", classes=3)

def made():
    return workload

text = "a workload"

def fails():
    raise OSError("no weights here")
"""
POINTS = ("mine", "made"), ("text", "text"), ("fails", "fails"), ("gone", "nonesuch"), ("digits-cnn", "workload")


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A distribution with workloads, where Python finds installed ones, in this process and in those it starts."""
    (tmp_path / "their_workloads.py").write_text(MODULE)
    folder = tmp_path / "theirs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    lines = [f"{name} = their_workloads:{attribute}" for name, attribute in POINTS]
    (folder / "entry_points.txt").write_text("\n".join([f"[{installed.GROUP}]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")


def test_an_installed_workload_has_its_entry_points_name_and_is_not_imported_here():
    found = installed.get("mine")
    assert (found.name, found.model.family, found.model.classes) == ("mine", PAIR, 3)
    assert "their_workloads" not in sys.modules
    assert plan.resolve(Settings(workload="mine", device="cpu"))[0] == found
    assert installed.names()["mine"] == "theirs"


def test_a_built_in_workload_keeps_its_name_and_no_package_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installed, "entry_points", lambda **_: pytest.fail("looked for installed packages"))
    assert installed.get("digits-cnn").model.family == "simple"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("text", "is a str; allowed: a compare.base.workloads.Workload"),
        ("fails", "OSError: no weights here"),
        ("gone", "nonesuch"),
        ("nobody", "allowed: digits-cnn, "),
        ("nobody", "mine"),
    ],
)
def test_what_brings_no_workload_is_refused(name: str, words: str):
    with pytest.raises(Refused) as refusal:
        installed.get(name)
    assert words in str(refusal.value)


def test_a_workload_that_only_the_parent_sees_is_named_in_the_child() -> None:
    with pytest.raises(SystemExit, match="0 installed packages have it; allowed: one, by pip install"):
        installed._main("nonesuch")
