"""The command line's options: what switches comparisons on, and what fills in settings that tests leave open."""

import re
from typing import Any

import pytest

from compare.settings.options import SETTINGS, Settings

OFF = "a comparison: `pytest --benchmark` runs it"
_OPTIONS = [option for option in SETTINGS.values() if option.pytest_help]


def add(parser: pytest.Parser) -> None:
    """Add samestep's own options."""
    group = parser.getgroup("samestep", "samestep: JAX against PyTorch")
    group.addoption(
        "--benchmark", action="store_true", dest="samestep", help="Run comparisons, which are skipped otherwise."
    )
    for option in _OPTIONS:
        group.addoption(
            f"--samestep-{option.name}",
            metavar=option.name[0].upper(),
            type=option.kind.read_as,
            help=f"{option.pytest_help} for comparisons that name none. Default: {option.default_in('compare')}.",
        )
    group.addoption("--samestep-report", metavar="DIR", help="Write each comparison's result and report below DIR.")


def stand_in(parser: pytest.Parser) -> bool:
    """Add --benchmark-only where pytest-benchmark is not there to do so; tell whether that was so."""
    try:
        parser.getgroup("benchmark").addoption(
            "--benchmark-only", action="store_true", help="Run comparisons, and nothing else."
        )
    except ValueError:  # pytest-benchmark has added it
        return False
    return True


def on(config: pytest.Config) -> bool:
    """Whether comparisons are to run."""
    return bool(config.getoption("samestep") or only(config))


def only(config: pytest.Config) -> bool:
    """Whether nothing but comparisons and benchmarks is to run."""
    return bool(config.getoption("benchmark_only", False))


def filling(config: pytest.Config) -> dict[str, Any]:
    """Return the settings that tests may leave open, None for those that the command line leaves open too."""
    return {option.name: config.getoption(f"samestep_{option.name}") for option in _OPTIONS}


def check(config: pytest.Config) -> None:
    """Check the options' values before anything is collected.

    Raises:
        pytest.UsageError: with what is allowed.
    """
    given = {name: value for name, value in filling(config).items() if value is not None}
    report = config.getoption("samestep_report")
    if not on(config) or not (given or report):
        return
    from compare.base import output
    from compare.base.interface import Refused
    from compare.settings import plan

    try:
        plan.resolve(Settings(**given))
        if report:
            output.writable(config.invocation_params.dir / report)
    except Refused as error:
        said = re.sub("--out", "--report", str(error))
        raise pytest.UsageError(re.sub("--(?=[a-z])", "--samestep-", said)) from None
