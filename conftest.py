"""Which tests run: `make quick` leaves out slow ones, and thorough ones run where they are asked for."""

import gc
import os
import re
from pathlib import Path

import pytest

_FRAMEWORK = re.compile(r"^(import|from) (flax|jax|jaxbackend|torch|torchbackend|tests\.(own|parity|planted))\b", re.M)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --quick, so that -m stays free for the user."""
    parser.addoption("--quick", action="store_true", help="leave out files that import a framework, and slow tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test to run: importing all of them takes 20 s."""
    if collection_path.suffix != ".py":
        return None
    if config.getoption("--quick"):
        return _FRAMEWORK.search(collection_path.read_text()) is not None or None
    return None


@pytest.hookimpl(trylast=True)  # after pytest-xdist has named the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what --quick says, and thorough tests unless -m or their own name asks for them."""
    for item in items:
        # pytest-xdist 3.8 adds the group to an id that pytest 9.2 no longer reads (pytest-dev/pytest-xdist#1386).
        if node_id := vars(item).get("_nodeid"):
            item._id = type(item._id).parse(node_id)
    excluded = set[str]()
    if not config.option.markexpr and not any("::" in argument for argument in config.args):
        excluded.add("thorough")
    if config.getoption("--quick"):
        excluded |= {"slow", "thorough"}
    chosen, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        (left_out if excluded & marks else chosen).append(item)
    if hasattr(config, "workerinput"):
        # Quick tests come last, so that neither worker waits long for the other.
        chosen.sort(key=lambda item: item.get_closest_marker("slow") is None)
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Leave what all imports have made out of later garbage collections, which take a second otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # collections of a few new objects take a twentieth of the time


def pytest_sessionstart() -> None:
    """Hide pytest-xdist from the programs that tests start: pytest-benchmark would take them for its workers."""
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
        del os.environ[name]
