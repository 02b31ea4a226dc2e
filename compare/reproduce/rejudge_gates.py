"""The gates of a certificate, judged again from the evidence that a result holds of them. Pure functions."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from compare.agreement import (
    certificate,
    effective_settings,
    gates,
    measures,
    trajectory,
)
from compare.agreement.certificate import Certificate
from compare.agreement.gates import ACCURACY, RULES, TRAJECTORY, Gate
from compare.agreement.referee import Referee
from compare.agreement.trajectory import Curves
from compare.base import typed_json
from compare.base.interface import is_buffer
from compare.results import verdicts

Object = Mapping[str, Any]

_CASE = re.compile(r"(?P<name>.*) \[(?P<case>[^\]]*)\]", re.DOTALL)


def recertified(result: Object) -> dict[str, Any]:
    """Return a result whose pairs have the gates, and the status, that their evidence gives.

    Evidence are the tensors of a pair (semantic, scaling, precision), both sides' settings, their accuracies over seeds
    and their loss curves. Of a gate that passed without any, nothing is left; one that failed because nothing could be
    computed keeps its value, and so does that of determinism, whose arrays a result does not hold.
    """
    agreement = result["agreement"]
    return {**result, "agreement": {**agreement, "pairs": [_pair(result, pair) for pair in agreement["pairs"]]}}


def missing(pair: Object, precision: str, judged: Sequence[str] = ()) -> Iterator[str]:
    """Yield the gates and tensors that a pair lacks which passed in that precision, `judged` by those gates as well.

    What one step has, all have; so has each parameter its gradient and its update, and each buffer its value, and both
    the change of all steps together. In a precision other than float64, what has errors has a noise floor.
    """
    if pair["status"] != "pass":
        return
    floored = precision != "float64"
    asked = ["semantic", "scaling", *(["precision"] if floored else []), *judged]
    gated = {gate["name"] for gate in pair["gates"]}
    yield from (f"gates[{name}]" for name in asked if name not in gated)
    tensors = {each["name"]: each for each in pair.get("tensors", ())}
    for case, names in (_by_case(tensors) or {"": {}}).items():
        parts = [name.partition("/") for name in names]
        inner = {"logits", "loss", *(rest for stage, _, rest in parts if stage.startswith("step"))}
        stored = {rest for stage, _, rest in parts if stage == "delta"}
        stored |= {rest.partition("/")[2] for rest in inner if rest.startswith(("gradient/", "update/", "buffer/"))}
        inner |= {f"{kind}/{name}" for name in stored for kind in _kinds(name)}
        whole = {f"step{step + 1}/{name}" for step in range(certificate.STEPS) for name in inner}
        whole |= {"evaluation/logits", *(f"delta/{name}" for name in stored)}
        end = case and f" [{case}]"
        yield from (f"tensors[{name}{end}]" for name in measures.sort_by_execution(sorted(whole - names.keys())))
        if floored:
            errors = ("baseline_error", "contender_error")
            bare = [
                name
                for name, each in names.items()
                if each["noise"] is None and any(each[error] is not None for error in errors)
            ]
            yield from (f"tensors[{name}{end}].noise" for name in bare)


def _kinds(name: str) -> Sequence[str]:
    """Return what a step has of a parameter, or of a buffer."""
    return ("buffer",) if is_buffer(name) else ("gradient", "update")


def _pair(result: Object, pair: Object) -> dict[str, Any]:
    tensors = {each["name"]: each for each in pair.get("tensors", ())}
    shown, stored = _of_tensors(tensors), [typed_json.read(Gate, gate) for gate in pair["gates"]]
    found = shown | _of_sides(result, pair)
    judged = [_again(gate, found.get(gate.name), tensors) for gate in stored]
    judged += [gate for name, gate in shown.items() if name not in {each.name for each in stored}]
    passed = "skipped" if pair["status"] == "skipped" else "pass"
    status = passed if all(gate.passed for gate in judged) else "fail"
    return {**pair, "status": status, "gates": [asdict(gate) for gate in judged]}


def _again(stored: Gate, found: Gate | None, tensors: Mapping[str, Object]) -> Gate:
    if stored.value is None and not stored.passed:
        return stored
    if found is None and RULES[stored.name].is_in_result:
        return replace(stored, value=None, passed=False)
    if found is None:
        return replace(stored, passed=stored.value is not None and stored.value <= stored.limit)
    worst = tensors.get(stored.worst_tensor or "")
    if worst is not None and _strain(stored.name, worst) == found.value:
        return replace(found, worst_tensor=stored.worst_tensor)  # several tensors may be equally bad
    return found


def _strain(gate: str, tensor: Object) -> float | None:
    if gate == "precision" and tensor["noise"] is not None:
        return max(_figure(tensor[side]) for side in ("baseline_error", "contender_error")) / tensor["noise"]
    return tensor[{"semantic": "e64", "scaling": "scaling"}.get(gate, "noise")]


def _figure(value: float | None) -> float:
    return math.inf if value is None else value


def _of_tensors(tensors: Mapping[str, Object]) -> dict[str, Gate]:
    """Judge the tensors case by case, as the certificate did."""
    cases = _by_case(tensors)
    if not cases:
        return {}
    combined = certificate.combine({case: Certificate(_judged(each), None) for case, each in cases.items()})
    return {gate.name: gate for gate in combined.gates}


def _by_case(tensors: Mapping[str, Object]) -> dict[str, dict[str, Object]]:
    """Return the tensors of each case by name, which ends with the case where there are several."""
    cases: dict[str, dict[str, Object]] = {}
    for full, each in tensors.items():
        match = _CASE.fullmatch(full)
        name, case = (match["name"], match["case"]) if match else (full, "")
        cases.setdefault(case, {})[name] = each
    return cases


def _judged(tensors: Mapping[str, Object]) -> tuple[Gate, ...]:
    def figures(key: str) -> dict[str, float]:
        return {name: _figure(each[key]) for name, each in tensors.items()}

    found = (gates.judge_semantic(figures("e64")), gates.judge_scaling(figures("scaling")))
    floor = {name: each["noise"] for name, each in tensors.items() if each["noise"] is not None}
    if not floor:
        return found
    return (*found, Referee(figures("baseline_error"), figures("contender_error"), floor).gate)


def _of_sides(result: Object, pair: Object) -> dict[str, Gate]:
    names = pair["baseline"], pair["contender"]
    known = {contender["name"]: contender["settings"] for contender in result["contenders"]}
    found: dict[str, Gate] = {}
    if all(name in known for name in names):
        found["settings"] = effective_settings.judge(*(known[name] for name in names))
    accuracies, curves = result["agreement"].get("accuracies", {}), result["agreement"].get("trajectory", {})
    if all(name in accuracies for name in names):
        twins = result["agreement"].get("twin_accuracies", {})
        beside = [(accuracies[name], twins[name]) for name in names if name in twins]
        found["accuracy"] = _accuracy(accuracies[names[0]], accuracies[names[1]], beside)
    if all(name in curves for name in names):
        found["trajectory"] = _trajectory(*(curves[name] for name in names))
    return found


def _accuracy(
    baseline: Sequence[float], contender: Sequence[float], twins: Sequence[tuple[Sequence[float], Sequence[float]]]
) -> Gate:
    lengths = {len(each) for each in (baseline, contender, *(twin for _, twin in twins))}
    if len(lengths) > 1 or len(baseline) < verdicts.LEAST_ROUNDS:
        return ACCURACY.judge(None, None)
    return trajectory.judge_accuracies(baseline, contender, twins)


def _trajectory(*sides: Object) -> Gate:
    curves = [Curves(*(np.array(side[key], np.float64) for key in ("loss", "envelope"))) for side in sides]
    if not all(each.own.size == each.envelope.size > 0 for each in curves):
        return TRAJECTORY.judge(None, None)
    return trajectory.judge_losses(*curves)
