"""samestep from Python: `run` does the work of `samestep compare`, and `certify` that of `samestep agree`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.base.arguments import reword_refusals
from compare.base.errors import suggest
from compare.base.interface import Refused
from compare.base.workloads import Workload
from compare.execution import execute
from compare.plugin.result import Result
from compare.settings import options, pair_spec, plan
from compare.settings.options import Settings

_FUNCTIONS = {"compare": "run", "agree": "certify"}
_OF_PAIR = ("jax", "torch", "image", "classes", "arguments", "optimizer", "loss", "allow")


@reword_refusals
def run(
    workload: str | Workload | None = None,
    contenders: Sequence[str] | None = None,
    *,
    out: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Train, certify and time contenders, and write the result file.

    Args:
        workload: a name that `samestep workloads` lists, or a `compare.Workload`, for example of `compare.pair(...)`.
            None makes a pair of the settings `jax`, `torch`, `image`, `classes`, `arguments`, `optimizer`, `loss` and
            `allow`, as `compare.pair` takes them.
        contenders: BACKEND[:TUNING] each. The first is the baseline. Default: torch and jax.
        out: folder of the result file. Default: samestep-out/TIME.
        settings: the options of `samestep compare` by their names in Python, such as `precision`, `device`, `rounds`,
            `batch_size`, `seed` and `data`. `request`, a `compare.Request`, says how to match a pair. None stands for
            the default.

    Returns:
        The result, with times in seconds, memory in bytes and verdicts. `path` is its file. A contender that failed has
        a `status` and a `reason`, and raises nothing.

    Raises:
        Refused: for an argument that is not allowed, before any process starts; for a pair that cannot be matched.
    """
    everything = _settings("compare", settings, workload=workload, contenders=contenders, out=out)
    return Result(*execute.execute(plan.make(everything), sys.argv))


@reword_refusals
def certify(
    workload: str | Workload | None = None,
    contenders: Sequence[str] | None = None,
    *,
    seeds: int = 5,
    out: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Prove that contenders compute the same thing.

    Args:
        workload: as in `run`.
        contenders: as in `run`. Default: those of `samestep agree`.
        seeds: training runs of each contender for the accuracy gate.
        out: as in `run`.
        settings: the options of `samestep agree`, as in `run`.

    Returns:
        The result, with every gate and no times.

    Raises:
        Refused: as in `run`.
    """
    everything = _settings("agree", settings, workload=workload, contenders=contenders, seeds=seeds, out=out)
    chosen = plan.make(plan.reduce_to_certificate(everything))
    return Result(*execute.execute(chosen, sys.argv, seeds=seeds))


def _settings(command: str, settings: Mapping[str, Any], **named: Any) -> Settings:
    """Return all settings of a call as one object. None stands for the default.

    Raises:
        Refused: for an unknown name, or a workload beside a pair.
    """
    pair = {name: value for name, value in settings.items() if name in _OF_PAIR}
    if pair and named["workload"] is not None:
        raise Refused(f"workload and {', '.join(pair)} exclude each other; allowed: one of them")
    if named["workload"] is None:
        if "image" not in pair:
            raise Refused("workload None is not allowed; allowed: a workload, or jax, torch and image of your own pair")
        settings = {name: value for name, value in settings.items() if name not in _OF_PAIR}
        named["workload"] = pair_spec.pair(**pair)
    allowed = [name for name in options.list_python_names(command) if name not in named]
    if unknown := [name for name in settings if name not in allowed]:
        function = _FUNCTIONS[command]
        question = "" if unknown[0] in options.SETTINGS else suggest(unknown[0], allowed)
        raise Refused(f"{function} has no setting {unknown[0]!r}; {question}allowed: {', '.join(allowed)}")
    return Settings(**{name: value for name, value in (named | dict(settings)).items() if value is not None})
