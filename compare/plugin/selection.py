"""The tests that are comparisons, and their collection."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from compare.plugin import comparison_request


def is_comparison(item: pytest.Item) -> bool:
    """Return whether a test takes the fixture `samestep` or has the marker of that name."""
    return "samestep" in _fixtures(item) or item.get_closest_marker("samestep") is not None


def read_marker(node: Any) -> dict[str, Any]:
    """Return the settings in a test's marker. They are empty without a marker. `node` is a test or its definition.

    Raises:
        TypeError: for an argument that the marker does not take.
    """
    marker = node.get_closest_marker("samestep")
    return comparison_request.to_layer(*marker.args, **marker.kwargs) if marker else {}


def parametrise(metafunc: pytest.Metafunc) -> None:
    """Turn a marked test that takes `contender` into one test for each contender.

    Raises:
        pytest.fail.Exception: for a marker that is not allowed.
    """
    if metafunc.definition.get_closest_marker("samestep") is None:
        return
    definition = metafunc.definition
    if not {"contender", "samestep"} & set(metafunc.fixturenames):
        raise _failed(definition, "it takes neither `contender` (one test for each contender) nor `samestep`")
    try:
        names = comparison_request.merge(read_marker(definition)).names
    except TypeError as error:
        raise _failed(definition, str(error)) from None
    if "contender" in metafunc.fixturenames:
        metafunc.parametrize("contender", names, indirect=True, ids=names)


def skip(items: Sequence[pytest.Item], reason: str) -> None:
    """Mark tests as skipped."""
    for item in items:
        item.add_marker(pytest.mark.skip(reason=reason))


@contextmanager
def appear_as_benchmarks(items: Sequence[pytest.Item]) -> Generator[None]:
    """Let pytest-benchmark treat comparisons as benchmarks while it selects tests.

    It looks at the fixtures that a test takes. Comparisons do not take `benchmark` themselves, because its setup would
    come before there is anything to report.
    """
    shown = [fixtures for item in items if "benchmark" not in (fixtures := _fixtures(item))]
    for fixtures in shown:
        fixtures.append("benchmark")
    try:
        yield
    finally:
        for fixtures in shown:
            fixtures.remove("benchmark")


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


def _failed(node: Any, why: str) -> BaseException:
    return pytest.fail.Exception(f"{node.nodeid} has the marker `samestep`, but {why}", pytrace=False)
