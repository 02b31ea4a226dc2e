"""From what was measured to what may be said: the state of a run becomes the result object."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from compare.agreement.certificate import Certificate
from compare.base import descriptions, strict_json
from compare.base.interface import Array
from compare.data import dataset_file
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import environment
from compare.results import result_file, verdicts
from compare.settings import options, tunings
from compare.settings.plan import Plan


def build(state: RunState, command: Sequence[str]) -> dict[str, Any]:
    """Return the result of a finished run. Without timed rounds it has no comparisons."""
    plan = state.plan
    raw: dict[str, Any] = {
        **result_file.head(result_file.SCHEMA_VERSION, command),
        "spec": _spec(plan, state),
        "environment": environment.describe() | _others(plan),
        "contenders": [_contender(plan, run) for run in state.runs],
        "comparisons": [],
        "agreement": _agreement(plan, state),
        "voided": [{"round": index + 1, "reason": reason} for index, reason in sorted(state.voided.items())],
        "telemetry": {
            **state.telemetry.to_json(),
            "foreign_cores": [each.foreign_cores for each in state.rounds],
            "idle_cores": [each.idle_cores for each in state.rounds],
        },
    }
    return verdicts.completed(raw)


def claim_failed(result: dict[str, Any]) -> bool:
    """Whether the contenders ran but a claim failed: no agreement, or work that was not proved."""
    return result["agreement"]["status"] == "fail" or any(
        comparison["verdict"] == "INVALID" and comparison["reason"] not in (verdicts.SKIPPED, verdicts.SEQUENTIAL)
        for comparison in result["comparisons"]
    )


def contender_failed(result: dict[str, Any]) -> bool:
    """Whether any contender stopped working."""
    return any(contender["status"] != "ok" for contender in result["contenders"])


def _others(plan: Plan) -> dict[str, Any]:
    """Return what the other machines of a run say of themselves, where there are any."""
    found = [{"host": other.host, **other.environment} for other in plan.cluster.others]
    return {"other_machines": found} if found else {}


def _spec(plan: Plan, state: RunState) -> dict[str, Any]:
    model = next((run.model for run in state.runs if run.model is not None), None)
    dataset = plan.dataset
    return {
        "workload": plan.workload.name,
        "contenders": [contender.name for contender in plan.contenders],
        **options.to_spec(plan),
        "machines": plan.cluster.count,
        "rounds": len(state.rounds),
        **descriptions.described(plan.workload),
        "parameter_count": None if model is None else model.parameter_count,
        "data_source": dataset.source,
        "data_sha256": dataset_file.sha256(dataset),
        "train_images": len(dataset.train.labels),
        "test_images": len(dataset.test.labels),
        "weights_sha256": None if model is None else model.weights_sha256,
        "design": state.design,
        "design_reason": state.design_reason,
        **({} if state.pairing is None else {"pair": state.pairing.to_json()}),
    }


def _contender(plan: Plan, run: ContenderRun) -> dict[str, Any]:
    # Beside other contenders, or with their programs, these times are not the contender's own.
    times = run.warm_up if plan.cold_compile else None
    return {
        "name": run.contender.name,
        "backend": run.contender.backend,
        "tuning": run.contender.tuning,
        "status": run.status,
        "reason": run.reason,
        "unproven": run.unproven,
        "settings": run.settings,
        "variables": run.variables,
        "versions": dict(run.versions),
        "kernel_search": _kernel_search(plan, run),
        "compile_seconds": None if times is None else times.compile_seconds,
        "cached_compile_seconds": median(run.cached_compile_seconds) if run.cached_compile_seconds else None,
        "first_step_seconds": None if times is None else times.first_step_seconds,
        "warmup_seconds": None if times is None else times.warmup_seconds,
        "steady": None if times is None else times.steady,
        "unsteady_rounds": sum(run.unsteady),
        "step_seconds": _blocks(run),
        "images_per_second": None,
        "memory": strict_json.encode(run.memory),
        "energy": strict_json.encode(run.energy),
        "communication": strict_json.encode(run.communication),
        "training": strict_json.encode(run.training),
    }


def _kernel_search(plan: Plan, run: ContenderRun) -> str | None:
    """Return how often kernels were timed against each other for the rounds, None where they were not.

    A user's own XLA_FLAGS may have another search than the knob. On several machines JAX keeps programs on the first
    alone, so that there is no one answer.
    """
    contender, backend = run.contender, run.contender.backend
    values = plan.knobs(contender)
    known = run.settings.get("kernel-search", True) if backend == "jax" else True
    if not plan.rounds or plan.cluster.count > 1 or known is False:
        return None
    if plan.keeps_search(contender):
        return "every round" if plan.search_anew else "once"
    return "every round" if plan.device == "cuda" and tunings.searches_anew(backend, values) else None


def _blocks(run: ContenderRun) -> dict[str, Any] | None:
    if not run.samples:
        return None
    return {
        "samples": run.samples,
        "windows": [[list(window) for window in windows] for windows in run.windows],
        "steps_per_block": run.steps_per_block,
    }


def _agreement(plan: Plan, state: RunState) -> dict[str, Any]:
    baseline = state.runs[0].contender.name
    return {
        "status": None,
        "precision": plan.precision,
        "reason": None,
        "pairs": [_pair(baseline, name, certificate) for name, certificate in state.certificates.items()],
        "gates": [],
        "first_mismatch": None,
        "accuracies": state.accuracies,
        "twin_accuracies": state.twin_accuracies,
        "trajectory": {
            name: {"loss": _finite(curves.own), "envelope": _finite(curves.envelope)}
            for name, curves in state.curves.items()
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
    """Return the figures with None for infinity, which is the error of a tensor with a reference of zero."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in figures.items()}
