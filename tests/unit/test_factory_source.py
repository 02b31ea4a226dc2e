"""Factories of a notebook's cell: their source is written out with all that it needs, and instances are refused."""

import importlib.util
import linecache
from pathlib import Path
from typing import Any

import pytest

import compare
from compare.base.interface import Refused
from compare.settings.factory_source import write_reference

CELL = '''
import functools
import math as m
from collections import OrderedDict

WIDTHS = (4, 8)
handle = open

def double(value):
    return 2 * value

class Base:
    @functools.lru_cache
    def size(self):
        return double(WIDTHS[1]) + m.floor(0.5)

class Net(Base):
    def __call__(self):
        return OrderedDict(size=self.size())

def make(factor=3):
    """Return a net."""
    return Net()

def leaks():
    return opened

opened = object()
'''


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    name = "<ipython-input-1>"
    monkeypatch.setitem(linecache.cache, name, (len(CELL), None, CELL.splitlines(keepends=True), name))
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), scope)
    return scope


def call(reference: str) -> Any:
    file, _, name = reference.rpartition(":")
    spec = importlib.util.spec_from_file_location("written", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)()


@pytest.mark.parametrize("name", ["make", "Net"])
def test_a_factory_of_a_cell_runs_from_its_written_source(cell: dict[str, Any], name: str) -> None:
    reference = write_reference("jax", cell[name])
    assert reference.endswith(f".py:{name}")
    assert call(reference)() == {"size": 16}
    assert write_reference("jax", cell[name]) == reference
    made = compare.pair(jax=cell["make"], torch=cell["make"], image="8x8x3", classes=10)
    assert made.model.arguments["jax"] == write_reference("jax", cell["make"])


def test_a_factory_of_a_file_is_its_reference() -> None:
    assert write_reference("torch", call) == f"{__file__}:call"
    assert write_reference("torch", "a.py:f") == "a.py:f"


def test_an_instance_is_refused_with_the_line_that_wraps_it(cell: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"torch is a Net object; .* def make_torch\(\): return Net\(\.\.\.\), and then"):
        compare.certify(jax=cell["make"], torch=cell["Net"](), image="8x8x3", classes=10)


def test_what_cannot_be_written_is_refused_by_name(cell: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="leaks uses opened, a object that cannot be written to a file"):
        write_reference("jax", cell["leaks"])
    with pytest.raises(Refused, match="allowed: a function or class that stands in no other one"):
        write_reference("jax", lambda: None)


def test_a_workload_beside_a_pair_is_refused() -> None:
    with pytest.raises(Refused, match="workload and torch exclude each other"):
        compare.certify("digits-cnn", torch="a.py:f")
    with pytest.raises(Refused, match="jax, torch and image of your own pair"):
        compare.run()
