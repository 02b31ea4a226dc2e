"""The options of pytest's command line. They turn comparisons on, and give settings that tests do not name."""

import re
from typing import Any

import pytest

from compare.settings.options import SETTINGS, UNDECIDED, Settings

OFF = "a comparison: `pytest --benchmark` runs it"
_OPTIONS = [option for option in SETTINGS.values() if option.pytest_help]


def add(parser: pytest.Parser) -> None:
    """Add samestep's own options."""
    group = parser.getgroup("samestep", "samestep: JAX against PyTorch")
    group.addoption(
        "--benchmark", action="store_true", dest="samestep", help="Run comparisons. Without it they are skipped."
    )
    for option in _OPTIONS:
        group.addoption(
            f"--samestep-{option.name}",
            metavar=option.name[0].upper(),
            type=option.kind.read_as,
            help=f"{option.pytest_help} for comparisons that name none. Default: {option.default_in('compare')}.",
        )
    group.addoption(
        "--samestep-undecided",
        choices=UNDECIDED,
        default="pass",
        help="What an INCONCLUSIVE verdict does to the test: pass, fail or skip. Default: pass.",
    )
    group.addoption("--samestep-report", metavar="DIR", help="Write each comparison's result and report below DIR.")


def add_benchmark_only(parser: pytest.Parser) -> bool:
    """Add --benchmark-only unless pytest-benchmark has added it. Return whether this function added it."""
    try:
        parser.getgroup("benchmark").addoption(
            "--benchmark-only", action="store_true", help="Run comparisons, and nothing else."
        )
    except ValueError:  # pytest-benchmark has added it
        return False
    return True


def is_enabled(config: pytest.Config) -> bool:
    """Return whether comparisons run."""
    return bool(config.getoption("samestep") or is_exclusive(config))


def is_exclusive(config: pytest.Config) -> bool:
    """Return whether only comparisons and benchmarks run."""
    return bool(config.getoption("benchmark_only", False))


def read_settings(config: pytest.Config) -> dict[str, Any]:
    """Return the settings for tests that do not name them. None stands for a setting that nobody names."""
    return {option.name: config.getoption(f"samestep_{option.name}") for option in _OPTIONS}


def check(config: pytest.Config) -> None:
    """Check the options' values before anything is collected.

    Raises:
        pytest.UsageError: for a value that is not allowed.
    """
    settings = {name: value for name, value in read_settings(config).items() if value is not None}
    report = config.getoption("samestep_report")
    if not is_enabled(config) or not (settings or report):
        return
    from compare.base import output
    from compare.base.interface import Refused
    from compare.settings import plan

    try:
        plan.resolve(Settings(**settings))
        if report:
            output.make_folder(config.invocation_params.dir / report)
    except Refused as error:
        message = re.sub("--out", "--report", str(error))
        raise pytest.UsageError(re.sub("--(?=[a-z])", "--samestep-", message)) from None
