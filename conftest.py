"""Which tests may run beside others: `make test` runs all but those marked `alone` on two workers, then those."""

import os
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --alone, beside which -m stays the user's."""
    help = "only: the tests marked alone; not: all others (default: both)"
    parser.addoption("--alone", choices=("only", "not"), help=help)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test marked alone where no other is asked for: importing them all takes 20 s."""
    if config.getoption("--alone") != "only" or collection_path.suffix != ".py":
        return None
    return "mark.alone" not in collection_path.read_text() or None


@pytest.hookimpl(trylast=True)  # when pytest-xdist has named the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what --alone does, and thorough tests unless -m or their own name asks for them."""
    for item in items:
        # pytest-xdist 3.8 adds the group to an id that pytest 9.2 no longer reads (pytest-dev/pytest-xdist#1386).
        if found := vars(item).get("_nodeid"):
            item._id = type(item._id).parse(found)
    named = any("::" in each for each in config.args)
    if not config.option.markexpr and not named:
        thorough = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if item not in thorough]
        config.hook.pytest_deselected(items=thorough)
    if (asked := config.getoption("--alone")) is None:
        return
    alone, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (alone if item.get_closest_marker("alone") else others).append(item)
    items[:], left_out = (alone, others) if asked == "only" else (others, alone)
    config.hook.pytest_deselected(items=left_out)


def pytest_sessionstart() -> None:
    """Keep what a test starts from taking itself for a worker of pytest-xdist, as pytest-benchmark would."""
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
        del os.environ[name]
