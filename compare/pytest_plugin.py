"""The pytest plugin: `pytest --benchmark`, the fixtures `samestep` and `contender`, and the marker `samestep`.

pytest loads it at every start wherever samestep is installed. So it imports only pytest and light files, and the rest
when a comparison runs.
"""

import shutil
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from compare.plugin import comparison_request, pytest_options, selection
from compare.plugin.comparison_request import ComparisonRequest

if TYPE_CHECKING:
    from compare.base.workloads import Workload
    from compare.plugin.comparisons import Comparisons
    from compare.plugin.result import Contender, Result

_LINES = pytest.StashKey[list[str]]()
_STANDS_IN = pytest.StashKey[bool]()
_SENT = "samestep"  # the key under which an xdist worker sends its lines


class Samestep:
    """The fixture `samestep`: call it to compare contenders.

    A call's settings win over those of the test's marker, and these over the command line's. A session runs the same
    comparison once.
    """

    def __init__(self, request: pytest.FixtureRequest, comparisons: "Comparisons") -> None:
        self._request, self._comparisons = request, comparisons

    def __call__(self, workload: "str | Workload | None" = None, **settings: Any) -> "Result":
        """Return the result of training `workload`, a name or a `compare.Workload`, with `settings`.

        Each contender gets a row in pytest-benchmark's table.

        Settings that are not allowed fail the test. So do, unless `check=False`, a contender that fails and contenders
        that do not agree.
        """
        __tracebackhide__ = True
        layers = selection.read_marker(self._request.node), comparison_request.to_layer(workload, **settings)
        wanted = comparison_request.merge(pytest_options.read_settings(self._request.config), *layers)
        result = _checked(self._request, self._comparisons, wanted)
        if self._request.config.pluginmanager.hasplugin("pytest-benchmark"):
            from compare.plugin import rows

            rows.replay_all(self._request, result)
        return result


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    pytest_options.add(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Generator[None]:
    """Add --benchmark-only once all other plugins are loaded, if none has it."""
    yield
    early_config.stash[_STANDS_IN] = pytest_options.add_benchmark_only(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the options."""
    config.addinivalue_line(
        "markers",
        "samestep(workload=None, *, contenders=['torch', 'jax'], precision, device, rounds, ...): a comparison, made "
        "with --benchmark; a test that takes `contender` runs once for each contender.",
    )
    config.stash[_LINES] = []
    pytest_options.check(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Turn a marked test into one test for each contender."""
    selection.parametrise(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Skip comparisons unless the command line turns them on."""
    comparisons = [item for item in items if selection.is_comparison(item)]
    if not pytest_options.is_enabled(config):
        selection.skip(comparisons, pytest_options.OFF)
    if pytest_options.is_exclusive(config) and config.stash.get(_STANDS_IN, False):
        selection.skip([item for item in items if item not in comparisons], "no comparison (--benchmark-only)")
    with selection.appear_as_benchmarks(comparisons):
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
    """One contender of the comparison that the test's marker names, with a row in pytest-benchmark's table."""
    if not hasattr(request, "param"):
        raise _failed("the fixture `contender` needs the marker: @pytest.mark.samestep(...)")
    comparisons = _comparisons(request)
    wanted = comparison_request.merge(pytest_options.read_settings(request.config), selection.read_marker(request.node))
    result = _checked(request, comparisons, wanted)
    contender = result.contender(request.param)
    if result.comparable(contender.name):
        if contender.blocks:
            from compare.plugin import rows

            rows.replay(request, result, contender)
        elif wanted.check:
            raise _failed(f"no time of {contender.name} counts: {result.voids}")
    return contender


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add GPUs, driver and versions to the machine info of pytest-benchmark."""
    if pytest_options.is_enabled(config):
        from compare.plugin import rows

        machine_info["samestep"] = rows.describe_machine()


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    """Report all comparisons after pytest-benchmark's table, even if that raises an exception."""
    try:
        yield
    finally:
        if lines := config.stash[_LINES]:
            terminalreporter.section("samestep")
            for line in lines:
                terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's lines to the main process."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_SENT] = session.config.stash[_LINES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the lines of a worker of pytest-xdist."""
    lines: list[str] = getattr(node, "workeroutput", {}).get(_SENT, [])
    mine = node.config.stash[_LINES]
    mine += ["", *lines] if mine and lines else lines


def _comparisons(request: pytest.FixtureRequest) -> "Comparisons":
    if not pytest_options.is_enabled(request.config):
        pytest.skip(pytest_options.OFF)
    return request.getfixturevalue("_samestep_comparisons")


def _checked(request: pytest.FixtureRequest, comparisons: "Comparisons", wanted: ComparisonRequest) -> "Result":
    __tracebackhide__ = True
    from compare.base.interface import Refused

    try:
        result = comparisons.result(wanted)
    except Refused as error:
        raise _failed(str(error)) from None
    if wanted.check and (why := result.failure):
        raise _failed(why)
    undecided = request.config.getoption("samestep_undecided")
    if undecided != "pass" and (open_questions := result.undecided):
        if undecided == "skip":
            pytest.skip(open_questions)
        raise _failed(open_questions)
    return result


def _failed(why: str) -> BaseException:
    return pytest.fail.Exception(f"samestep: {why}", pytrace=False)
