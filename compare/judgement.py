"""From what was measured to what may be said: outcomes of a run become the result object."""

import json
import math
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any

from compare import environment, results, statistics
from compare.agreement.certificate import Certificate, worst_gates
from compare.data import store
from compare.interface import Array
from compare.launcher import Outcome, Outcomes
from compare.plan import Plan

_LEAST_ROUNDS = 2


def result(plan: Plan, outcomes: Outcomes, command: Sequence[str]) -> dict[str, Any]:
    """Return the result object of `compare.results` for a finished run; without timed rounds it compares nothing."""
    agreement = _agreement(plan, outcomes)
    return {
        "schema_version": results.SCHEMA_VERSION,
        "id": uuid.uuid4().hex,
        "created": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command": list(command),
        "spec": _spec(plan, outcomes),
        "environment": environment.describe(),
        "contenders": [_contender(plan, outcome) for outcome in outcomes.contenders],
        "comparisons": [_comparison(plan, outcomes, outcome) for outcome in outcomes.contenders[1:] if plan.rounds],
        "agreement": agreement,
        "voided": [],
    }


def claim_failed(result: dict[str, Any]) -> bool:
    """Whether the contenders ran but a claim failed: no agreement, or work that was not proved."""
    return result["agreement"]["status"] == "fail" or any(
        comparison["verdict"] == "INVALID" and comparison["reason"] != _SKIPPED for comparison in result["comparisons"]
    )


def contender_failed(result: dict[str, Any]) -> bool:
    """Whether any contender stopped working."""
    return any(contender["status"] != "ok" for contender in result["contenders"])


_SKIPPED = "agreement was skipped, so nothing shows that both sides computed the same thing"


def _spec(plan: Plan, outcomes: Outcomes) -> dict[str, Any]:
    opened: dict[str, Any] = {}
    for outcome in outcomes.contenders:
        opened = opened or outcome.opened
    return {
        "workload": plan.workload.name,
        "contenders": [contender.name for contender in plan.contenders],
        "batch_size": plan.batch_size,
        "precision": plan.precision,
        "device": plan.device,
        "rounds": plan.rounds,
        "seed": plan.seed,
        "epochs": plan.epochs,
        "margin": plan.margin,
        "confidence": plan.confidence,
        "image": list(plan.workload.model.image),
        "classes": plan.workload.model.classes,
        "parameter_count": opened.get("parameter_count"),
        "optimizer": json.loads(json.dumps(asdict(plan.workload.optimizer))),  # tuples become lists
        "label_smoothing": plan.workload.label_smoothing,
        "data_source": plan.dataset.source,
        "data_sha256": store.sha256(plan.dataset),
        "weights_sha256": opened.get("weights_sha256"),
        "agreement_requested": plan.agreement,
        "deterministic": plan.deterministic,
    }


def _contender(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    start = outcome.start or {}
    step = _step_seconds(plan, outcome)
    return {
        "name": outcome.contender.name,
        "backend": outcome.contender.backend,
        "tuning": outcome.contender.tuning,
        "status": outcome.status,
        "reason": outcome.reason,
        "settings": outcome.settings,
        "versions": outcome.versions,
        "compile_seconds": start.get("compile_seconds"),
        "first_step_seconds": start.get("first_step_seconds"),
        "warmup_seconds": start.get("warmup_seconds"),
        "steady": start.get("steady"),
        "step_seconds": step,
        "images_per_second": step
        and plan.batch_size / (step["interval"]["estimate"] if step["interval"] else step["median"]),
        "memory": outcome.memory,
        "training": outcome.training,
    }


def _step_seconds(plan: Plan, outcome: Outcome) -> dict[str, Any] | None:
    if not outcome.samples:
        return None
    enough = len(outcome.samples) >= _LEAST_ROUNDS
    interval = statistics.geometric_interval(_medians(outcome), plan.confidence) if enough else None
    return {
        **statistics.summarise(outcome.samples),
        "interval": interval and asdict(interval),
        "samples": outcome.samples,
        "steps_per_block": outcome.steps_per_block,
    }


def _medians(outcome: Outcome) -> list[float]:
    return [median(blocks) for blocks in outcome.samples]


def _comparison(plan: Plan, outcomes: Outcomes, outcome: Outcome) -> dict[str, Any]:
    baseline = outcomes.contenders[0]
    rounds = min(len(baseline.samples), len(outcome.samples))
    ratio = detectable = None
    if rounds >= _LEAST_ROUNDS:
        a, b = _medians(baseline)[:rounds], _medians(outcome)[:rounds]
        ratio = statistics.paired_ratio(a, b, plan.confidence)
        detectable = statistics.minimum_detectable_effect([math.log(y / x) for x, y in zip(a, b, strict=True)])
    reason = _invalid(plan, outcomes, outcome, rounds)
    return {
        "baseline": baseline.contender.name,
        "contender": outcome.contender.name,
        "ratio": ratio and asdict(ratio),
        "verdict": "INVALID" if reason or ratio is None else statistics.verdict(ratio, plan.margin),
        "rounds": rounds,
        "margin": plan.margin,
        "detectable": detectable,
        "reason": reason,
    }


def _invalid(plan: Plan, outcomes: Outcomes, outcome: Outcome, rounds: int) -> str | None:
    baseline = outcomes.contenders[0]
    for side in (baseline, outcome):
        if side.status != "ok":
            return f"{side.contender.name} failed ({side.status}): {side.reason}"
        if side.unproven:
            return f"{side.contender.name} did not do the work that was timed: {side.unproven}"
    if rounds < _LEAST_ROUNDS:
        return f"only {rounds} rounds were timed"
    if not plan.agreement:
        return _SKIPPED
    certificate = outcomes.certificates.get(outcome.contender.name)
    if certificate is None or not certificate.passed:
        where = certificate.first_mismatch if certificate else "no certificate was made"
        return f"no agreement with {baseline.contender.name}: {where}"
    return None


def _agreement(plan: Plan, outcomes: Outcomes) -> dict[str, Any]:
    baseline = outcomes.contenders[0].contender.name
    pairs = [_pair(baseline, name, certificate) for name, certificate in outcomes.certificates.items()]
    expected = len(outcomes.contenders) - 1
    status = "fail" if any(pair["status"] == "fail" for pair in pairs) else "pass"
    reason = None
    if not plan.agreement:
        status, reason = "skipped", "skipped on request (--skip-agreement)"
    elif status == "pass" and len(pairs) < expected:
        status, reason = "skipped", "a contender failed before its certificate was complete"
    return {
        "status": status,
        "precision": plan.precision,
        "reason": reason,
        "pairs": pairs,
        "gates": [asdict(gate) for gate in worst_gates(list(outcomes.certificates.values()))],
        "first_mismatch": next((pair["first_mismatch"] for pair in pairs if pair["first_mismatch"]), None),
        "accuracies": outcomes.accuracies,
        "trajectory": {
            name: {"loss": _finite(curves.own), "envelope": _finite(curves.envelope)}
            for name, curves in outcomes.curves.items()
        },
    }


def _finite(values: Array) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _pair(baseline: str, name: str, certificate: Certificate) -> dict[str, Any]:
    return {
        "baseline": baseline,
        "contender": name,
        "status": "pass" if certificate.passed else "fail",
        "gates": [asdict(gate) for gate in certificate.gates],
        "first_mismatch": certificate.first_mismatch,
        "notes": list(certificate.notes),
        "tensors": [asdict(evidence) for evidence in certificate.evidence],
    }
