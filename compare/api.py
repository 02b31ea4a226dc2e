"""samestep from Python: what `samestep compare` and `samestep agree` do, for a workload by name or of one's own."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.base.arguments import of_python
from compare.base.interface import Refused
from compare.base.workloads import Workload
from compare.execution import execute
from compare.plugin.result import Result
from compare.settings import options, plan
from compare.settings.naming import DEFAULT_CONTENDERS
from compare.settings.options import Settings

_FUNCTIONS = {"compare": "run", "agree": "certify"}


@of_python
def run(
    workload: str | Workload,
    contenders: Sequence[str] = DEFAULT_CONTENDERS,
    *,
    out: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Train, certify and time contenders, as `samestep compare`, and write the result file.

    Args:
        workload: a name that `samestep workloads` lists, or a `compare.Workload`, of `compare.pair(...)` for example.
        contenders: BACKEND[:TUNING] each, the first being the baseline.
        out: folder of the result file. Default: samestep-out/TIME.
        settings: the options of `samestep compare` by their names in Python: `precision`, `device`, `rounds`,
            `batch_size`, `seed`, `data`, ..., and `request`, a `compare.Request`: how a pair is brought together.

    Raises:
        Refused: for what cannot be compared, before any process starts; a pair, also where its models cannot be
            matched.
    """
    asked = _settings("compare", settings, workload=workload, contenders=contenders, out=out)
    return Result(*execute.execute(plan.make(asked), sys.argv))


@of_python
def certify(
    workload: str | Workload,
    contenders: Sequence[str] | None = None,
    *,
    seeds: int = 5,
    out: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Prove that contenders compute the same thing, as `samestep agree`; arguments as `run`'s.

    Args:
        workload: as `run`'s.
        contenders: as `run`'s. Default: those of `samestep agree`.
        seeds: training runs per contender for the accuracy gate.

    Raises:
        Refused: for what cannot be certified, as `run`.
    """
    asked = _settings("agree", settings, workload=workload, contenders=contenders, seeds=seeds, out=out)
    chosen = plan.make(plan.for_certificate(asked))
    return Result(*execute.execute(chosen, sys.argv, seeds=seeds))


def _settings(command: str, settings: Mapping[str, Any], **named: Any) -> Settings:
    """Return all settings of a call as one object; None stands for a default.

    Raises:
        Refused: for a name that the command does not have as a setting.
    """
    allowed = [name for name in options.list_python_names(command) if name not in named]
    if unknown := [name for name in settings if name not in allowed]:
        function = _FUNCTIONS[command]
        raise Refused(f"{function} has no setting {unknown[0]!r}; allowed: {', '.join(allowed)}")
    return Settings(**{name: value for name, value in (named | dict(settings)).items() if value is not None})
