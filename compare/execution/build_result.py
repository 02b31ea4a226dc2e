"""Builds the result of a run from its state."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from compare.agreement.certificate import Certificate
from compare.base import descriptions, early_stopping, strict_json, typed_json
from compare.base.commands import DeviceTime
from compare.base.interface import Array
from compare.base.typed_json import Json, read
from compare.execution import explanation, round_validity
from compare.execution.run_state import ContenderRun, KeptCertificate, RunState
from compare.machine import environment
from compare.results import result_file, verdicts
from compare.results.model import (
    PAIR,
    SELF,
    Agreement,
    Communication,
    Contender,
    Energy,
    Environment,
    FullTraining,
    Kept,
    Latency,
    Memory,
    Pair,
    Result,
    Spec,
    StepTimes,
    Telemetry,
    TensorEvidence,
    Training,
    Trajectory,
    Voided,
)
from compare.settings import options, tunings
from compare.settings.plan import Plan


def build(state: RunState, command: Sequence[str]) -> Result:
    """Return the result of a finished run. Without timed rounds it has no comparisons."""
    plan = state.plan
    telemetry = {
        **state.telemetry.to_json(),
        "foreign_cores": [each.foreign_cores for each in state.rounds],
        "idle_cores": [each.idle_cores for each in state.rounds],
        "busiest": [each.busiest for each in state.rounds],
        "void_limit": _find_void_limit(plan),
    }
    contenders = tuple(_contender(plan, state, run) for run in state.runs)
    head: dict[str, Any] = {**result_file.make_head(result_file.SCHEMA_VERSION, command), "command": tuple(command)}
    return verdicts.complete_result(
        Result(
            **head,
            spec=read(Spec, _spec(plan, state)),
            environment=Environment(extra=typed_json.write(environment.describe()) | _other_machines(plan)),
            contenders=contenders,
            comparisons=(),
            agreement=_agreement(plan, state),
            voided=tuple(Voided(round=index + 1, reason=reason) for index, reason in sorted(state.voided.items())),
            telemetry=read(Telemetry, telemetry),
            explanation=explanation.explain(state, contenders),
            full_training=_describe_full_training(state),
        )
    )


def _find_void_limit(plan: Plan) -> float | None:
    limit = round_validity.find_limit(plan)
    return limit if plan.device == "cpu" and math.isfinite(limit) else None


def _describe_full_training(state: RunState) -> FullTraining | None:
    trained = state.full_training
    if trained is None:
        return None
    return FullTraining(contender=trained.contender, training=read(Training, strict_json.encode(trained.result)))


def _other_machines(plan: Plan) -> dict[str, Json]:
    """Return the environments of a run's other machines, empty if there are none."""
    others = [{"host": other.host, **other.environment} for other in plan.cluster.others]
    return {"other_machines": others} if others else {}


def _spec(plan: Plan, state: RunState) -> dict[str, Any]:
    model = next((run.model for run in state.runs if run.model is not None), None)
    dataset = plan.dataset
    return {
        "workload": plan.workload.name,
        "contenders": [contender.name for contender in plan.contenders],
        **options.to_spec(plan),
        "machines": plan.cluster.count,
        "rounds": len(state.rounds),
        "least_rounds": early_stopping.LEAST_ROUNDS,
        "looks": early_stopping.to_json(plan.looks),
        **descriptions.describe_arithmetic(plan.workload),
        "parameter_count": None if model is None else model.parameter_count,
        "data_source": dataset.source,
        "data_sha256": dataset.sha256,
        "train_images": len(dataset.train.labels),
        "test_images": len(dataset.test.labels),
        "weights_sha256": None if model is None else model.weights_sha256,
        "design": state.design,
        "design_reason": state.design_reason,
        **({} if state.pairing is None else {"pair": state.pairing.to_json()}),
    }


def _contender(plan: Plan, state: RunState, run: ContenderRun) -> Contender:
    times = run.cold
    return Contender(
        name=run.contender.name,
        backend=run.contender.backend,
        tuning=run.contender.tuning,
        status=run.status,
        reason=run.reason,
        unproven=run.unproven,
        settings=run.settings,
        variables=run.variables,
        versions=run.versions,
        kernel_search=_kernel_search(plan, run),
        compile_seconds=times and times.compile_seconds,
        compile_measured=times and times.measured,
        compile_reason=run.cold_reason,
        revision=run.contender.commit or None,
        cached_compile_seconds=median(run.cached_compile_seconds) if run.cached_compile_seconds else None,
        first_step_seconds=times and times.first_step_seconds,
        warmup_seconds=times and times.warmup_seconds,
        steady=times and times.steady,
        unsteady_rounds=sum(run.unsteady),
        step_seconds=_step_times(plan, state, run),
        images_per_second=None,
        memory=read(Memory, strict_json.encode(run.memory)) if run.memory else None,
        energy=read(Energy, strict_json.encode(run.energy)) if run.energy else None,
        communication=read(Communication, strict_json.encode(run.communication)) if run.communication else None,
        training=read(Training, strict_json.encode(run.training)) if run.training else None,
        latency={str(size): _latency(plan, state, run, size) for size in plan.batch_sizes}
        if plan.batch_sizes
        else None,
        program_kept=run.program_kept and Kept(key=run.program_kept.key, created=run.program_kept.created),
    )


def _kernel_search(plan: Plan, run: ContenderRun) -> str | None:
    """Return how often the rounds' kernels were searched for, None if they were not or machines differ.

    A user's own XLA_FLAGS may search otherwise than the knob says. On several machines, JAX keeps programs on the
    first one only.
    """
    contender, backend = run.contender, run.contender.backend
    values = plan.knobs(contender)
    known = run.settings.get("kernel-search", True) if backend == "jax" else True
    if not plan.rounds or plan.cluster.count > 1 or known is False:
        return None
    if plan.keeps_search(contender):
        return "every round" if plan.search_anew else "once"
    return "every round" if plan.device == "cuda" and tunings.searches_anew(backend, values) else None


def _step_times(plan: Plan, state: RunState, run: ContenderRun) -> StepTimes | None:
    if not run.samples or run.steps_per_block is None:
        return None
    void = {index + 1 for index in state.voided}
    return verdicts.summarise_steps(run.samples, run.windows, run.steps_per_block, void, plan.confidence)


def _latency(plan: Plan, state: RunState, run: ContenderRun, size: int) -> Latency:
    known, joules = run.requests[size], None
    device, absent = known.device_time or DeviceTime(reason="it was not reached"), dict[str, str]()
    if device.seconds is None:
        absent["device_seconds"] = absent["host_seconds"] = device.reason or "no reason was recorded"
    if known.energy is None or known.energy.joules_per_step is None:
        absent["joules_per_thousand_images"] = (known.energy and known.energy.reason) or "it was not reached"
    else:
        joules = 1000 * known.energy.joules_per_step / size
    return verdicts.summarise_requests(
        Latency(
            **dict.fromkeys(("p50", "p90", "p99", "low", "high"), None),
            intervals={},
            images_per_second=None,
            enqueue_seconds=None,
            device_seconds=device.seconds,
            host_seconds=None,
            joules_per_thousand_images=joules,
            cold_start_seconds=run.cold_start_seconds if size == min(plan.batch_sizes or ()) else None,
            program=known.program,
            samples=tuple(map(tuple, known.samples)),
            queued=tuple(map(tuple, known.queued)),
            enqueued=tuple(known.enqueued),
            windows=tuple(tuple(blocks) for blocks in known.windows),
            absent=absent,
        ),
        size,
        {index + 1 for index in state.voided},
        plan.confidence,
    )


def _agreement(plan: Plan, state: RunState) -> Agreement:
    baseline = state.runs[0].contender.name
    return Agreement(
        status="skipped",  # until `verdicts.complete` concludes it from the pairs
        precision=plan.precision,
        reason=None,
        pairs=tuple(
            _pair(baseline, name, certificate, state.kept.get(name)) for name, certificate in state.certificates.items()
        ),
        gates=(),
        first_mismatch=None,
        accuracies={name: tuple(values) for name, values in state.accuracies.items()},
        twin_accuracies={name: tuple(values) for name, values in state.twin_accuracies.items()},
        trajectory={
            name: Trajectory(loss=_finite(curves.own), envelope=_finite(curves.envelope))
            for name, curves in state.curves.items()
        },
        kind=PAIR if len({run.contender.backend for run in state.runs}) > 1 else SELF,
    )


def _finite(values: Array) -> tuple[float | None, ...]:
    return tuple(float(value) if math.isfinite(value) else None for value in values)


def _pair(baseline: str, name: str, certificate: Certificate, kept: KeptCertificate | None) -> Pair:
    return Pair(
        baseline=baseline,
        contender=name,
        status=certificate.status,
        gates=certificate.gates,
        first_mismatch=certificate.first_mismatch,
        notes=certificate.notes,
        repairs=certificate.repairs,
        tensors=tuple(TensorEvidence(**_finite_figures(asdict(figures))) for figures in certificate.evidence),
        kept=kept and Kept(key=kept.key, created=kept.created),
    )


def _finite_figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures with None for infinity, which is the error of a tensor whose reference is zero."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in figures.items()}
