"""Plan the repetition of a stored result's run: the same contenders, workload, seeds and design."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from compare.base import descriptions, installed, typed_json
from compare.base.interface import Refused
from compare.base.workloads import OptimizerSpec
from compare.data import pruning
from compare.machine import environment
from compare.reproduce import user_code
from compare.reproduce.differences import find_differences
from compare.results import verdicts
from compare.results.model import Result, Spec
from compare.settings import contenders, options, plan
from compare.settings.options import Settings
from compare.settings.plan import Plan


def make_plan(stored: Result, changes: Mapping[str, Any], *, changed_code: bool = False) -> Plan:
    """Return the plan that repeats a stored result's run. For a result of `samestep agree` it times nothing.

    For an interrupted run it has the completed rounds, or the requested number if too few were completed.

    Args:
        stored: a valid result.
        changes: settings that replace stored ones, `out` among them.
        changed_code: whether another source of a user's own pair is accepted than the stored one.

    Raises:
        Refused: the run cannot be repeated, because the device or the data are missing here, the workload has changed,
            or a contender's name contradicts its tuning.
    """
    spec = stored.spec
    if spec.machines > 1:
        raise Refused(f"the result is of {spec.machines} machines; allowed: results of one")
    names = tuple(contender.name for contender in stored.contenders)
    if names != spec.contenders:
        raise Refused(f"spec.contenders are {', '.join(spec.contenders)}, contenders are {', '.join(names)}")
    if "rounds" in changes and not spec.is_comparison:
        raise Refused(
            f"--rounds {changes['rounds']}: the result is of `samestep agree`, which times nothing; leave --rounds out"
        )
    texts = [name.partition("#")[0] for name in names]
    for parsed, contender in zip(contenders.parse(texts), stored.contenders, strict=True):
        if (parsed.name, parsed.backend, parsed.tuning) != (contender.name, contender.backend, contender.tuning):
            raise Refused(f"contender {contender.name} is stored as {contender.backend} with tuning {contender.tuning}")
    if spec.device == "cuda" and not environment.has_cuda():
        gpu = stored.device_name or "a GPU"
        raise Refused(
            f"the result was measured on {gpu}, and {environment.explain_no_cuda()}; allowed: a machine with one"
        )
    is_pair = user_code.names_code(stored)
    if not is_pair:
        _check_workload(spec)
    repeated: dict[str, Any] = options.from_spec(typed_json.write(spec)) | {
        "contenders": texts,
        "workload": user_code.build_workload(stored) if is_pair else spec.workload,
        "request": user_code.build_request(stored, changed=changed_code) if is_pair else None,
        "rotation": spec.rotation if spec.rotation <= environment.count_visible_gpus() else 1,
        "timed": spec.is_comparison,
        "rounds": _choose_rounds(spec),
        "certify_again": True,
        # Only alternating rounds ever become others, and then with a reason.
        "design": "alternating" if spec.design_reason else spec.design,
    }
    return plan.make(Settings(**repeated | dict(changes)))


def read_seeds(stored: Result) -> int:
    """Return the number of seeds of a certificate's accuracies.

    Raises:
        Refused: `samestep agree` does not allow this number.
    """
    lengths = [len(accuracies) for accuracies in stored.agreement.accuracies.values()]
    count = max(lengths, default=options.SETTINGS["seeds"].default)
    options.SETTINGS["seeds"].check(count)
    return count


def _choose_rounds(spec: Spec) -> int | None:
    """Return the rounds of a repetition; None if it may stop early, as the stored run could."""
    if spec.looks is not None or not spec.is_comparison:
        return None
    return spec.rounds if spec.rounds >= verdicts.LEAST_ROUNDS else spec.rounds_requested


def _check_workload(spec: Spec) -> None:
    """Check that the workload of that name has not changed."""
    try:
        workload = installed.get(spec.workload)
    except Refused as error:
        raise Refused(f"of the result: {error}") from None
    if spec.prune is not None:
        model = pruning.prune(workload.model, spec.prune, spec.round_to, spec.prune_by)
        workload = replace(workload, model=model)
    here, stored = descriptions.describe_arithmetic(workload), typed_json.write(spec)
    stored["optimizer"] = asdict(OptimizerSpec("", 0.0)) | stored["optimizer"]
    difference = next(find_differences({key: stored[key] for key in here}, here), None)
    if difference:
        raise Refused(
            f"workload {spec.workload}: {difference.place} was {difference.stored}, here it is {difference.here}; "
            "allowed: the samestep that made the result"
        )
