"""samestep from Python: what `samestep compare` and `samestep agree` do, for a workload by name or of one's own."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import conduct, plan
from compare.commands import endings
from compare.plugin.result import Result
from compare.tuning.contenders import of_certificate
from compare.tuning.naming import DEFAULT_CONTENDERS
from compare.workloads import Workload


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
        settings: those of `compare.plan.make`: `precision`, `device`, `rounds`, `batch_size`, `seed`, ...

    Raises:
        Refused: for what cannot be compared, before any process starts.
    """
    chosen = plan.make(contenders, workload=workload, out=_folder(out), **settings)
    return Result(*conduct.carried_out(chosen, sys.argv))


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
        Refused: for what cannot be certified, before any process starts.
    """
    plan.check_seeds(seeds)
    certified, _ = plan.check(workload, **{key: settings[key] for key in ("precision", "device") if key in settings})
    named = of_certificate(certified) if contenders is None else contenders
    chosen = plan.make(named, workload=certified, out=_folder(out), rounds=None, **settings)
    return Result(*conduct.carried_out(chosen, sys.argv, seeds=seeds))


def _folder(out: str | Path | None) -> Path:
    return endings.default_out() if out is None else Path(out)
