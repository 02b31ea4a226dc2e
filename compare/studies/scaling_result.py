"""Build, check, write and read the result file of `samestep scale`."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.base import typed_json, untrusted
from compare.base.interface import Refused
from compare.results import result_file
from compare.results.model import Result
from compare.studies import efficiency
from compare.studies.scaling import Task
from compare.studies.scaling_model import Run, RunAgreement, Scaling, ScalingSpec

SCHEMA_VERSION = 1
SCHEMA = "scaling.schema.json"
KIND = "scaling"


def build(task: Task, completed: Sequence[tuple[Result, Path]], command: Sequence[str]) -> Scaling:
    """Return the result of a scaling.

    Args:
        task: the scaling.
        completed: result and file of each completed run, the task's first ones.
        command: the command line.
    """
    runs, plan = [run for run, _ in completed], task.plans[0]
    spec = ScalingSpec(
        workload=plan.workload.name,
        contenders=tuple(contender.name for contender in plan.contenders),
        devices=tuple(run.spec.devices for run in runs),
        devices_requested=tuple(each.devices for each in task.plans),
        rotation=max(each.rotation for each in task.plans),
        mode=task.mode,
        batch_size=task.batch_size,
        batch_norm=plan.batch_norm,
        precision=plan.precision,
        device=plan.device,
        rounds=plan.rounds,
        seed=plan.seed,
        epochs=plan.epochs,
        confidence=plan.confidence,
    )
    return Scaling(
        **result_file.make_head(SCHEMA_VERSION, command),
        kind=KIND,
        spec=spec,
        environment=runs[0].environment,
        runs=tuple(_build_run(run, path, task.out) for run, path in completed),
        scaling=efficiency.make_entries(runs, task.ways, task.mode),
    )


def validate(value: Any) -> Scaling:
    """Return a JSON value as a scaling, if it fits the schema and its parts do not contradict each other.

    Raises:
        Refused: with the path of the first fault, and the allowed value.
    """
    result_file.check_schema(value, SCHEMA)
    scaling = typed_json.read(Scaling, value)
    for fault in efficiency.find_faults(scaling):
        raise Refused(fault)
    return scaling


def write(scaling: Scaling, folder: Path) -> Path:
    """Check the scaling and write `folder/result.json` atomically. Return its path.

    Raises:
        Refused: as `validate` and `compare.results.result_file.replace`.
    """
    value = typed_json.write(scaling)
    validate(value)
    return result_file.replace(folder / result_file.FILE_NAME, value)


def load(path: Path) -> Scaling:
    """Read and check the result file of a scaling.

    Raises:
        Refused: with the file's name, for a file that cannot be read, of another kind, or that `validate` refuses.
    """
    try:
        return validate(untrusted.parse(untrusted.read(path, untrusted.SIZE_LIMIT, result_file.KIND)))
    except Refused as error:
        raise Refused(f"{path}: {error}") from None


def _build_run(run: Result, path: Path, folder: Path) -> Run:
    agreement = run.agreement
    return Run(
        devices=run.spec.devices,
        batch_size=run.spec.batch_size,
        file=path.relative_to(folder).as_posix(),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        agreement=RunAgreement(
            status=agreement.status, reason=agreement.reason, first_mismatch=agreement.first_mismatch
        ),
        comparisons=run.comparisons,
        voided=run.voided,
    )
