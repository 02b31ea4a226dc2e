"""The pytest plugin: `pytest --benchmark`, the fixtures `samestep` and `contender`, and the marker `samestep`.

pytest loads it at every start wherever samestep is installed, so it imports only pytest and light files of its own;
all else is imported where a comparison is made.
"""

import shutil
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from compare.plugin import comparison_request, pytest_options, selection
from compare.plugin.comparison_request import Asked

if TYPE_CHECKING:
    from compare.base.workloads import Workload
    from compare.plugin.comparisons import Comparisons
    from compare.plugin.result import Contender, Result

_LINES = pytest.StashKey[list[str]]()
_STANDS_IN = pytest.StashKey[bool]()
_SENT = "samestep"  # the key under which an xdist worker sends its lines


class Samestep:
    """The fixture `samestep`: call it to compare contenders.

    The marker's settings, if the test has one, hold where a call says nothing, and the command line's where neither
    does. The same comparison is made once a session.
    """

    def __init__(self, request: pytest.FixtureRequest, comparisons: "Comparisons") -> None:
        self._request, self._comparisons = request, comparisons

    def __call__(self, workload: "str | Workload | None" = None, **settings: Any) -> "Result":
        """Return the result of training `workload`, a name or a `compare.Workload`, with `settings`.

        A comparison that is refused fails the test; so does, unless `check=False`, one in which a contender failed or
        the contenders do not agree.
        """
        __tracebackhide__ = True
        given = selection.marked(self._request.node), comparison_request.layer(workload, **settings)
        return _checked(
            self._comparisons, comparison_request.merged(pytest_options.filling(self._request.config), *given)
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    pytest_options.add(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Generator[None]:
    """Take --benchmark-only, too, where every other plugin is loaded and none has it."""
    yield
    early_config.stash[_STANDS_IN] = pytest_options.stand_in(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker, and refuse options that cannot be honoured."""
    config.addinivalue_line(
        "markers",
        "samestep(workload=None, *, contenders=['torch', 'jax'], precision, device, rounds, ...): a comparison, made "
        "with --benchmark; a test that takes `contender` runs once for each contender.",
    )
    config.stash[_LINES] = []
    pytest_options.check(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a marked test one test for each contender."""
    selection.parametrise(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Skip comparisons that were not asked for, and keep those that were."""
    comparisons = [item for item in items if selection.is_comparison(item)]
    if not pytest_options.on(config):
        selection.skip(comparisons, pytest_options.OFF)
    if pytest_options.only(config) and config.stash.get(_STANDS_IN, False):
        selection.skip([item for item in items if item not in comparisons], "no comparison (--benchmark-only)")
    with selection.seen_as_benchmarks(comparisons):
        yield


@pytest.fixture(scope="session")
def _samestep_comparisons(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Comparisons":
    from compare.plugin.comparisons import Comparisons

    config = request.config
    base = tmp_path_factory.getbasetemp()
    report = config.getoption("samestep_report")
    return Comparisons(
        # A worker of pytest-xdist has a folder of its own, below one that the session's workers share.
        folder=(base.parent if hasattr(config, "workerinput") else base) / "samestep",
        report=config.invocation_params.dir / report if report else None,
        command=["pytest", *map(str, config.invocation_params.args)],
        lines=config.stash[_LINES],
        width=shutil.get_terminal_size().columns,
    )


@pytest.fixture
def samestep(request: pytest.FixtureRequest) -> Samestep:
    """Compare contenders: `samestep("digits-cnn", contenders=["torch", "jax"]).ratio("jax").high < 1.05`."""
    return Samestep(request, _comparisons(request))


@pytest.fixture
def contender(request: pytest.FixtureRequest) -> "Contender":
    """One contender of the comparison that the test's marker names, and its row in pytest-benchmark's table."""
    if not hasattr(request, "param"):
        raise _failed("the fixture `contender` needs the marker: @pytest.mark.samestep(...)")
    comparisons = _comparisons(request)
    wanted = comparison_request.merged(pytest_options.filling(request.config), selection.marked(request.node))
    result = _checked(comparisons, wanted)
    found = result.contender(request.param)
    if result.comparable(found.name):
        if found.blocks:
            from compare.plugin import rows

            rows.replay(request, result, found)
        elif wanted.check:
            raise _failed(f"no time of {found.name} counts: {result.voids}")
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add the GPU, its driver and the frameworks' versions to what pytest-benchmark saves."""
    if pytest_options.on(config):
        from compare.plugin import machine_info as described

        machine_info["samestep"] = described.describe()


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    """Report on all comparisons, after pytest-benchmark's table, which may end in an exception."""
    try:
        yield
    finally:
        if lines := config.stash[_LINES]:
            terminalreporter.section("samestep")
            for line in lines:
                terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's lines to the terminal's process."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_SENT] = session.config.stash[_LINES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the lines that a worker of pytest-xdist has sent."""
    lines: list[str] = getattr(node, "workeroutput", {}).get(_SENT, [])
    mine = node.config.stash[_LINES]
    mine += ["", *lines] if mine and lines else lines


def _comparisons(request: pytest.FixtureRequest) -> "Comparisons":
    if not pytest_options.on(request.config):
        pytest.skip(pytest_options.OFF)
    return request.getfixturevalue("_samestep_comparisons")


def _checked(comparisons: "Comparisons", wanted: Asked) -> "Result":
    __tracebackhide__ = True
    from compare.base.interface import Refused

    try:
        result = comparisons.result(wanted)
    except Refused as error:
        raise _failed(str(error)) from None
    if wanted.check and (why := result.failure):
        raise _failed(why)
    return result


def _failed(why: str) -> BaseException:
    return pytest.fail.Exception(f"samestep: {why}", pytrace=False)
