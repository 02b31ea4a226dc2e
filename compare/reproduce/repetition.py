"""The plan that repeats a stored result's run, with the same contenders, workload, seeds and design."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from compare.base import descriptions, installed
from compare.base.interface import Refused
from compare.base.workloads import OptimizerSpec
from compare.machine import environment
from compare.reproduce import user_code
from compare.reproduce.differences import differing
from compare.results import verdicts
from compare.results.model import Environment
from compare.settings import contenders, options, plan
from compare.settings.options import Settings
from compare.settings.plan import Plan

Object = Mapping[str, Any]


def make_plan(stored: Object, changes: Mapping[str, Any], *, changed_code: bool = False) -> Plan:
    """Return the plan that repeats a stored result's run. For a result of `samestep agree` it times nothing.

    For an interrupted run it has as many rounds as were complete, or as many as were requested if too few were.

    Args:
        stored: a valid result.
        changes: settings that replace stored ones, `out` among them.
        changed_code: whether another source of a user's own pair is accepted than the stored one.

    Raises:
        Refused: where the run cannot be repeated: no such device or data here, a workload that has changed since, or
            contenders that are not what their names say.
    """
    spec = stored["spec"]
    if spec.get("machines", 1) > 1:
        raise Refused(f"the result is of {spec['machines']} machines; allowed: results of one")
    names = [contender["name"] for contender in stored["contenders"]]
    if names != spec["contenders"]:
        raise Refused(f"spec.contenders are {', '.join(spec['contenders'])}, contenders are {', '.join(names)}")
    if "rounds" in changes and not stored["spec"]["rounds_requested"]:
        raise Refused(
            f"--rounds {changes['rounds']}: the result is of `samestep agree`, which times nothing; leave --rounds out"
        )
    texts = [name.partition("#")[0] for name in names]
    for here, known in zip(contenders.parse(texts), stored["contenders"], strict=True):
        if (here.name, here.backend, here.tuning) != (known["name"], known["backend"], known["tuning"]):
            raise Refused(f"contender {known['name']} is stored as {known['backend']} with tuning {known['tuning']}")
    if spec["device"] == "cuda" and not environment.has_cuda():
        gpu = Environment(extra=stored["environment"]).device_name("cuda") or "a GPU"
        raise Refused(
            f"the result was measured on {gpu}, and {environment.explain_no_cuda()}; allowed: a machine with one"
        )
    named = user_code.is_named(stored)
    if not named:
        _check_workload(spec)
    repeated: dict[str, Any] = options.from_spec(spec) | {
        "contenders": texts,
        "workload": user_code.workload(stored) if named else spec["workload"],
        "request": user_code.request(stored, changed=changed_code) if named else None,
        "rotation": _rotation(spec),
        "rounds": _rounds(stored),
        "design": _planned_design(spec),
    }
    return plan.make(Settings(**repeated | dict(changes)))


def read_seeds(stored: Object) -> int:
    """Return over how many seeds the accuracies of a certificate were taken.

    Raises:
        Refused: for a number that `samestep agree` does not take.
    """
    by_contender = stored["agreement"].get("accuracies", {}).values()
    count = max((len(accuracies) for accuracies in by_contender), default=options.SETTINGS["seeds"].default)
    options.SETTINGS["seeds"].check(count)
    return count


def _rotation(spec: Object) -> int:
    """Return on how many GPUs rounds go around: 1 where there are not so many here."""
    stored = spec.get("rotation", 1)
    return stored if stored <= environment.count_visible_gpus() else 1


def _rounds(stored: Object) -> int | None:
    whole = stored["spec"]["rounds"]
    return whole if whole >= verdicts.LEAST_ROUNDS else stored["spec"]["rounds_requested"] or None


def _planned_design(spec: Object) -> str:
    # Only alternating rounds ever become others, and then with a reason.
    return "alternating" if spec.get("design_reason") else spec.get("design", "alternating")


def _check_workload(spec: Object) -> None:
    try:
        chosen = installed.get(spec["workload"])
    except Refused as error:
        raise Refused(f"of the result: {error}") from None
    unset = json.loads(json.dumps(asdict(OptimizerSpec("", 0.0))))  # what a key means that the stored spec has not
    before = {
        "label_smoothing": 0.0,
        **{key: spec[key] for key in descriptions.described(chosen) if key in spec},
        "optimizer": {**unset, **spec["optimizer"]},
    }
    here = {key: value for key, value in descriptions.described(chosen).items() if key in before}
    difference = next(differing(before, here), None)
    if difference:
        raise Refused(
            f"workload {spec['workload']}: {difference.place} was {difference.stored}, here it is {difference.here}; "
            "allowed: the samestep that made the result"
        )
