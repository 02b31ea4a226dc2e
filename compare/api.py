"""samestep from Python: what `samestep compare` and `samestep agree` do, for a workload by name or of one's own."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from compare.base.arguments import of_python, typed
from compare.base.interface import Refused
from compare.base.workloads import Workload
from compare.cli import exit_codes
from compare.execution import execute
from compare.plugin.comparison_request import Settings
from compare.plugin.result import Result
from compare.settings import plan
from compare.settings.contenders import of_certificate
from compare.settings.naming import DEFAULT_CONTENDERS

_OF_TIMING = ("agreement", "cold_compile", "design", "energy", "margin", "rounds", "search_anew")


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
    named = _named(settings, "run")
    chosen = plan.make(contenders, workload=workload, out=_folder(out), **named)
    return Result(*execute.execute(chosen, sys.argv))


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
    named = _named(settings, "certify", _OF_TIMING)
    plan.check_seeds(seeds)
    certified, _ = plan.check(workload, **{key: settings[key] for key in ("precision", "device") if key in settings})
    texts = of_certificate(certified) if contenders is None else contenders
    chosen = plan.make(texts, workload=certified, out=_folder(out), rounds=None, **named)
    return Result(*execute.execute(chosen, sys.argv, seeds=seeds))


def _named(settings: Mapping[str, Any], function: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return settings as `compare.settings.plan.make` calls them, refused where they are not a caller's to set."""
    allowed = sorted(Settings.__annotations__.keys() - {"contenders", "check", *without})
    if unknown := [name for name in settings if name not in allowed]:
        raise Refused(f"{function} has no setting {unknown[0]!r}; allowed: {', '.join(allowed)}")
    return {"data_folder" if name == "data" else name: value for name, value in settings.items()}


def _folder(out: str | Path | None) -> Path:
    typed("--out", out, (str, Path, NoneType), "a folder's path")
    return exit_codes.default_out() if out is None else Path(out)
