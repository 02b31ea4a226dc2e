"""Judge the gates of a certificate again from the evidence in a result. Pure functions."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compare.agreement import (
    certificate,
    effective_settings,
    gates,
    measures,
    trajectory,
    unequal_resources,
)
from compare.agreement.certificate import Certificate
from compare.agreement.gates import ACCURACY, RULES, TRAJECTORY, Gate
from compare.agreement.referee import Referee
from compare.agreement.trajectory import Curves
from compare.base.interface import is_buffer
from compare.results import verdicts
from compare.results.model import Pair, Result, TensorEvidence, Trajectory

Tensors = Mapping[str, TensorEvidence]

_CASE = re.compile(r"(?P<name>.*) \[(?P<case>[^\]]*)\]", re.DOTALL)


def rejudge(result: Result) -> Result:
    """Return a result with the gates and the status that the evidence of each pair gives.

    The evidence of a pair is its tensors (gates semantic, scaling, precision), the settings of both sides, their
    accuracies over seeds and their loss curves. A gate that passed without its evidence fails. Two gates keep their
    value: one that could not compute any, and determinism, because a result does not hold its arrays.
    """
    pairs = tuple(_rejudge_pair(result, pair) for pair in result.agreement.pairs)
    return replace(result, agreement=replace(result.agreement, pairs=pairs))


def find_missing(
    pair: Pair, precision: str, required: Sequence[str] = (), batch_sizes: Sequence[int] | None = None
) -> Iterator[str]:
    """Yield the gates and tensors that a passed pair lacks.

    Every step must have the same tensors. A parameter has a gradient and an update, a buffer has a value, and both have
    a change over all steps. In a precision other than float64, a tensor with errors has a noise floor.

    Args:
        pair: the pair.
        precision: of the timed run.
        required: gates that the pair needs besides those of its tensors.
        batch_sizes: of the requests; None for training. Requests have no steps, and logits of each batch size.
    """
    if pair.status != "pass":
        return
    has_floor = precision != "float64"
    names = {gate.name for gate in pair.gates}
    every = ["semantic", "scaling", *(["precision"] if has_floor else []), *required]
    yield from (f"gates[{name}]" for name in every if name not in names)
    for case, tensors in (_split_by_case(_tensors_by_name(pair)) or {"": {}}).items():
        end = case and f" [{case}]"
        answers = None if batch_sizes is None else {"step1/logits", *map("evaluation/batch-{}".format, batch_sizes)}
        missing = sorted((answers or _expected_tensors(tensors)) - tensors.keys())
        yield from (f"tensors[{name}{end}]" for name in measures.sort_by_execution(missing))
        if has_floor:
            yield from (f"tensors[{name}{end}].noise" for name, tensor in tensors.items() if _lacks_floor(tensor))


def _expected_tensors(names: Collection[str]) -> set[str]:
    """Return the names of all tensors that a certificate with these tensors must have."""
    parts = [name.partition("/") for name in names]
    in_step = {"logits", "loss", *(rest for stage, _, rest in parts if stage.startswith("step"))}
    stored = {rest for stage, _, rest in parts if stage == "delta"}
    stored |= {rest.partition("/")[2] for rest in in_step if rest.startswith(("gradient/", "update/", "buffer/"))}
    for name in stored:
        in_step |= {f"buffer/{name}"} if is_buffer(name) else {f"gradient/{name}", f"update/{name}"}
    steps = {f"step{step + 1}/{name}" for step in range(certificate.STEPS) for name in in_step}
    return steps | {"evaluation/logits", *(f"delta/{name}" for name in stored)}


def _lacks_floor(tensor: TensorEvidence) -> bool:
    has_errors = tensor.baseline_error is not None or tensor.contender_error is not None
    return tensor.noise is None and has_errors


def _tensors_by_name(pair: Pair) -> dict[str, TensorEvidence]:
    return {tensor.name: tensor for tensor in pair.tensors}


def _rejudge_pair(result: Result, pair: Pair) -> Pair:
    tensors = _tensors_by_name(pair)
    of_tensors = _judge_tensors(tensors)
    evident = of_tensors | _judge_sides(result, pair)
    judged = [_rejudge_gate(gate, evident.get(gate.name), tensors) for gate in pair.gates]
    names = {gate.name for gate in pair.gates}
    judged += [gate for name, gate in of_tensors.items() if name not in names]
    passed = "skipped" if pair.status == "skipped" else "pass"
    status = passed if all(gate.passed for gate in judged) else "fail"
    return replace(pair, status=status, gates=tuple(judged))


def _rejudge_gate(stored: Gate, evident: Gate | None, tensors: Tensors) -> Gate:
    if stored.value is None and not stored.passed:
        return stored
    if evident is None and stored.name in RULES and RULES[stored.name].is_in_result:
        return replace(stored, value=None, passed=False)
    if evident is None:
        return replace(stored, passed=stored.value is not None and stored.value <= stored.limit)
    worst = tensors.get(stored.worst_tensor or "")
    if worst is not None and _gate_value(stored.name, worst) == evident.value:
        return replace(evident, worst_tensor=stored.worst_tensor)  # several tensors may be equally bad
    return evident


def _gate_value(gate: str, tensor: TensorEvidence) -> float | None:
    """Return the value that a gate has if this tensor is the worst."""
    if gate == "precision" and tensor.noise is not None:
        return max(_to_figure(tensor.baseline_error), _to_figure(tensor.contender_error)) / tensor.noise
    return {"semantic": tensor.e64, "scaling": tensor.scaling}.get(gate, tensor.noise)


def _to_figure(value: float | None) -> float:
    return math.inf if value is None else value


def _judge_tensors(tensors: Tensors) -> dict[str, Gate]:
    """Judge the tensors case by case, as the certificate did."""
    cases = _split_by_case(tensors)
    if not cases:
        return {}
    combined = certificate.combine({case: Certificate(_judge_case(each), None) for case, each in cases.items()})
    return {gate.name: gate for gate in combined.gates}


def _split_by_case(tensors: Tensors) -> dict[str, dict[str, TensorEvidence]]:
    """Return the tensors of each case by name. With several cases, a stored name ends with its case."""
    cases: dict[str, dict[str, TensorEvidence]] = {}
    for full_name, tensor in tensors.items():
        match = _CASE.fullmatch(full_name)
        name, case = (match["name"], match["case"]) if match else (full_name, "")
        cases.setdefault(case, {})[name] = tensor
    return cases


def _judge_case(tensors: Tensors) -> tuple[Gate, ...]:
    e64 = {name: _to_figure(tensor.e64) for name, tensor in tensors.items()}
    ratios = {name: _to_figure(tensor.scaling) for name, tensor in tensors.items()}
    judged = (gates.judge_semantic(e64), gates.judge_scaling(ratios))
    floor = {name: tensor.noise for name, tensor in tensors.items() if tensor.noise is not None}
    if not floor:
        return judged
    baseline = {name: _to_figure(tensor.baseline_error) for name, tensor in tensors.items()}
    contender = {name: _to_figure(tensor.contender_error) for name, tensor in tensors.items()}
    return (*judged, Referee(baseline, contender, floor).gate)


def _judge_sides(result: Result, pair: Pair) -> dict[str, Gate]:
    """Judge the settings, accuracies and loss curves of both sides, as far as the result has them."""
    names, agreement = (pair.baseline, pair.contender), result.agreement
    judged: dict[str, Gate] = {}
    settings = {contender.name: contender.settings for contender in result.contenders}
    if all(name in settings for name in names):
        sides = settings[pair.baseline], settings[pair.contender]
        judged["settings"] = effective_settings.judge(*sides)
        judged["resources"] = unequal_resources.judge(*sides, result.spec.unequal)
    accuracies, twins, curves = agreement.accuracies, agreement.twin_accuracies, agreement.trajectory
    if all(name in accuracies for name in names):
        with_twins = [(accuracies[name], twins[name]) for name in names if name in twins]
        judged["accuracy"] = _judge_accuracy(accuracies[pair.baseline], accuracies[pair.contender], with_twins)
    if all(name in curves for name in names):
        judged["trajectory"] = _judge_trajectory(curves[pair.baseline], curves[pair.contender])
    return judged


def _judge_accuracy(
    baseline: Sequence[float], contender: Sequence[float], twins: Sequence[tuple[Sequence[float], Sequence[float]]]
) -> Gate:
    lengths = {len(values) for values in (baseline, contender, *(twin for _, twin in twins))}
    if len(lengths) > 1 or len(baseline) < verdicts.LEAST_ROUNDS:
        return ACCURACY.judge(None, None)
    return trajectory.judge_accuracies(baseline, contender, twins)


def _judge_trajectory(*sides: Trajectory) -> Gate:
    curves = [Curves(np.array(side.loss, np.float64), np.array(side.envelope, np.float64)) for side in sides]
    if not all(each.own.size == each.envelope.size > 0 for each in curves):
        return TRAJECTORY.judge(None, None)
    return trajectory.judge_losses(*curves)
