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
        "contenders": [_contender(plan, outcomes, outcome) for outcome in outcomes.contenders],
        "comparisons": [_comparison(plan, outcomes, outcome) for outcome in outcomes.contenders[1:] if plan.rounds],
        "agreement": agreement,
        "voided": [{"round": index + 1, "reason": reason} for index, reason in sorted(outcomes.voided.items())],
        "telemetry": {
            **outcomes.telemetry.to_json(),
            "foreign_cores": [each.foreign_cores for each in outcomes.rounds],
        },
    }


def claim_failed(result: dict[str, Any]) -> bool:
    """Whether the contenders ran but a claim failed: no agreement, or work that was not proved."""
    return result["agreement"]["status"] == "fail" or any(
        comparison["verdict"] == "INVALID" and comparison["reason"] not in (_SKIPPED, _SEQUENTIAL)
        for comparison in result["comparisons"]
    )


def contender_failed(result: dict[str, Any]) -> bool:
    """Whether any contender stopped working."""
    return any(contender["status"] != "ok" for contender in result["contenders"])


_SKIPPED = "agreement was skipped, so nothing shows that both sides computed the same thing"

_SEQUENTIAL = (
    "invalid design: all rounds of one contender were timed before the other's, so that a drift of the machine cannot "
    "be told from a difference between them"
)


def _spec(plan: Plan, outcomes: Outcomes) -> dict[str, Any]:
    opened: dict[str, Any] = {}
    for outcome in outcomes.contenders:
        opened = opened or outcome.opened
    return {
        "workload": plan.workload.name,
        "contenders": [contender.name for contender in plan.contenders],
        "batch_size": plan.batch_size,
        "accumulate": plan.accumulate,
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
        "design": outcomes.design,
        "design_reason": outcomes.design_reason,
    }


def _contender(plan: Plan, outcomes: Outcomes, outcome: Outcome) -> dict[str, Any]:
    start = outcome.start or {}
    step = _step_seconds(plan, outcomes, outcome)
    return {
        "name": outcome.contender.name,
        "backend": outcome.contender.backend,
        "tuning": outcome.contender.tuning,
        "status": outcome.status,
        "reason": outcome.reason,
        "settings": outcome.settings,
        "versions": outcome.versions,
        "compile_seconds": start.get("compile_seconds"),
        "cached_compile_seconds": median(outcome.cached_compile_seconds) if outcome.cached_compile_seconds else None,
        "first_step_seconds": start.get("first_step_seconds"),
        "warmup_seconds": start.get("warmup_seconds"),
        "steady": start.get("steady"),
        "unsteady_rounds": outcome.unsteady_rounds,
        "step_seconds": step,
        "images_per_second": step
        and plan.batch_size / (step["interval"]["estimate"] if step["interval"] else step["median"]),
        "memory": outcome.memory,
        "energy": outcome.energy,
        "training": outcome.training,
    }


def _step_seconds(plan: Plan, outcomes: Outcomes, outcome: Outcome) -> dict[str, Any] | None:
    if not outcome.samples:
        return None
    medians = list(_medians(outcomes, outcome).values())
    interval = statistics.geometric_interval(medians, plan.confidence) if len(medians) >= _LEAST_ROUNDS else None
    return {
        **statistics.summarise(outcome.samples),
        "interval": interval and asdict(interval),
        "samples": outcome.samples,
        "windows": [[list(window) for window in windows] for windows in outcome.windows],
        "steps_per_block": outcome.steps_per_block,
    }


def _medians(outcomes: Outcomes, outcome: Outcome) -> dict[int, float]:
    """Return the median block of every round that counts, by round."""
    return {index: median(blocks) for index, blocks in enumerate(outcome.samples) if index not in outcomes.voided}


def _comparison(plan: Plan, outcomes: Outcomes, outcome: Outcome) -> dict[str, Any]:
    baseline = outcomes.contenders[0]
    a, b = _medians(outcomes, baseline), _medians(outcomes, outcome)
    rounds = [index for index in a if index in b]
    ratio = detectable = None
    outliers: list[int] = []
    if len(rounds) >= _LEAST_ROUNDS:
        ratio = statistics.paired_ratio([a[r] for r in rounds], [b[r] for r in rounds], plan.confidence)
        differences = [math.log(b[r] / a[r]) for r in rounds]
        detectable = statistics.minimum_detectable_effect(differences, plan.confidence)
        outliers = [rounds[index] + 1 for index in statistics.outliers(differences)]
    invalid = _invalid(plan, outcomes, outcome, len(rounds))
    undecided = _voided(outcomes, len(rounds))
    decided = "INCONCLUSIVE" if ratio is None else statistics.verdict(ratio, plan.margin)
    return {
        "baseline": baseline.contender.name,
        "contender": outcome.contender.name,
        "ratio": ratio and asdict(ratio),
        "verdict": "INVALID" if invalid else decided,
        "rounds": len(rounds),
        "margin": plan.margin,
        "detectable": detectable,
        "outliers": outliers,
        "reason": invalid or undecided,
    }


def _voided(outcomes: Outcomes, rounds: int) -> str | None:
    """Return why nothing can be said where too few rounds are left, None otherwise."""
    if rounds >= _LEAST_ROUNDS or not outcomes.voided:
        return None
    return f"{len(outcomes.voided)} of {len(outcomes.rounds)} rounds are void"


def _invalid(plan: Plan, outcomes: Outcomes, outcome: Outcome, rounds: int) -> str | None:
    baseline = outcomes.contenders[0]
    for side in (baseline, outcome):
        if side.status != "ok":
            return f"{side.contender.name} failed ({side.status}): {side.reason}"
        if side.unproven:
            return f"{side.contender.name} did not do the work that was timed: {side.unproven}"
    if outcomes.design == "sequential":
        return _SEQUENTIAL
    if rounds < _LEAST_ROUNDS and not outcomes.voided:
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
    found = {pair["status"] for pair in pairs}
    status = "fail" if "fail" in found else "skipped" if "skipped" in found else "pass"
    reason = None
    if not plan.agreement:
        status, reason = "skipped", "skipped on request (--skip-agreement)"
    elif status == "skipped" or (status == "pass" and len(pairs) < expected):
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
        "status": certificate.status,
        "gates": [asdict(gate) for gate in certificate.gates],
        "first_mismatch": certificate.first_mismatch,
        "notes": list(certificate.notes),
        "tensors": [_json(asdict(evidence)) for evidence in certificate.evidence],
    }


def _json(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures with None for infinity, the error of a tensor whose reference is zero."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in figures.items()}
