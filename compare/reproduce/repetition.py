"""The plan that repeats the run of a stored result: the same contenders, workload, seeds and design."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from compare.base import descriptions, installed
from compare.base.interface import Refused
from compare.base.workloads import OptimizerSpec
from compare.machine import environment
from compare.report import sentences
from compare.reproduce import user_code
from compare.reproduce.differences import differing
from compare.results import verdicts
from compare.settings import contenders, plan
from compare.settings.plan import Plan

Object = Mapping[str, Any]

_SEEDS = 5


def plan_of(
    stored: Object,
    *,
    out: Path,
    rounds: int | None = None,
    data_folder: str | None = None,
    deadline: float | None = None,
    changed_code: bool = False,
) -> Plan:
    """Return the plan of a stored result's run: of `samestep agree` where no rounds were asked for.

    Of an interrupted run it has the rounds that were whole, or where these were too few, those that were asked for.

    Args:
        stored: a valid result.
        out: folder for the new result.
        rounds: in place of the stored number.
        data_folder: where the data lie here, in place of the stored folder.
        deadline: seconds, in place of the stored deadline.
        changed_code: of a user's own pair, whether another source than the stored one is accepted.

    Raises:
        Refused: where the run cannot be repeated: no such device or data here, a workload that is another one by now,
            contenders that are not what they are called.
    """
    spec = stored["spec"]
    if spec.get("machines", 1) > 1:
        raise Refused(f"the result is of {spec['machines']} machines; allowed: results of one")
    names = [each["name"] for each in stored["contenders"]]
    if names != spec["contenders"]:
        raise Refused(f"spec.contenders are {', '.join(spec['contenders'])}, contenders are {', '.join(names)}")
    if rounds is not None and not verdicts.is_comparison(stored):
        raise Refused(f"--rounds {rounds}: the result is of `samestep agree`, which times nothing; leave --rounds out")
    texts = [name.partition("#")[0] for name in names]
    for here, each in zip(contenders.parse(texts), stored["contenders"], strict=True):
        if (here.name, here.backend, here.tuning) != (each["name"], each["backend"], each["tuning"]):
            raise Refused(f"contender {each['name']} is stored as {each['backend']} with tuning {each['tuning']}")
    if spec["device"] == "cuda" and not environment.has_cuda():
        gpu = sentences.device_name(stored["environment"], "cuda") or "a GPU"
        raise Refused(
            f"the result was measured on {gpu}, and {environment.explain_no_cuda()}; allowed: a machine with one"
        )
    named = user_code.is_named(stored)
    if not named:
        _check_workload(spec)
    made = plan.make(
        texts,
        out=out,
        workload=user_code.workload(stored) if named else spec["workload"],
        request=user_code.request(stored, changed=changed_code) if named else None,
        batch_size=spec["batch_size"],
        precision=spec["precision"],
        accumulate=spec.get("accumulate", 1),
        devices=spec.get("devices", 1),
        rotation=_rotation(spec),
        batch_norm=spec.get("batch_norm", "sync"),
        device=spec["device"],
        rounds=_rounds(stored) if rounds is None else rounds,
        seed=spec["seed"],
        epochs=spec["epochs"],
        margin=spec["margin"],
        data_folder=_data_folder(stored) if data_folder is None else data_folder,
        images=spec.get("images"),
        agreement=spec["agreement_requested"],
        deterministic=spec["deterministic"],
        design=_planned_design(spec),
        energy=spec.get("energy_requested", False),
        cold_compile=spec.get("cold_compile_requested", True),
        search_anew=spec.get("search_anew_requested", False),
        deadline=spec.get("deadline_seconds") if deadline is None else deadline,
    )
    return replace(made, confidence=spec["confidence"])


def seeds(stored: Object) -> int:
    """Return over how many seeds the accuracies of a certificate were taken.

    Raises:
        Refused: for a number that `samestep agree` does not take.
    """
    found = stored["agreement"].get("accuracies", {}).values()
    count = max((len(accuracies) for accuracies in found), default=_SEEDS)
    plan.check_seeds(count)
    return count


def _rotation(spec: Object) -> int:
    """Return on how many GPUs rounds go around: 1 where there are not so many here."""
    stored = spec.get("rotation", 1)
    return stored if stored <= environment.count_visible_gpus() else 1


def _rounds(stored: Object) -> int | None:
    whole = stored["spec"]["rounds"]
    return whole if whole >= verdicts.LEAST_ROUNDS else verdicts.rounds_requested(stored) or None


def _planned_design(spec: Object) -> str:
    # Only alternating rounds ever become others, and then with a reason.
    return "alternating" if spec.get("design_reason") else spec.get("design", "alternating")


def _data_folder(stored: Object) -> str | None:
    if "data_folder" in stored["spec"]:
        return stored["spec"]["data_folder"]
    # Before the spec had it, only the command told.
    command = [*stored["command"], None]
    return command[command.index("--data") + 1] if "--data" in command else None


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
    found = next(differing(before, here), None)
    if found:
        raise Refused(
            f"workload {spec['workload']}: {found.place} was {found.stored}, here it is {found.here}; "
            "allowed: the samestep that made the result"
        )
