"""The result file of `samestep scale`: its object, its checks, and how it is written and read."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.base import untrusted
from compare.base.interface import Refused
from compare.results import result_file
from compare.studies import efficiency
from compare.studies.scaling import Task

SCHEMA_VERSION = 1
SCHEMA = "scaling.schema.json"
KIND = "scaling"


def result(task: Task, found: Sequence[tuple[Mapping[str, Any], Path]], command: Sequence[str]) -> dict[str, Any]:
    """Return the object of a scaling's `result.json`; `found` are each run's result and the file that it stands in.

    They may be the first of the task's only.
    """
    runs, chosen = [run for run, _ in found], task.plans[0]
    return {
        **result_file.head(SCHEMA_VERSION, command),
        "kind": KIND,
        "spec": {
            "workload": chosen.workload.name,
            "contenders": [contender.name for contender in chosen.contenders],
            "devices": [run["spec"]["devices"] for run in runs],
            "devices_requested": [each.devices for each in task.plans],
            "rotation": max(each.rotation for each in task.plans),
            "mode": task.mode,
            "batch_size": task.batch_size,
            "batch_norm": chosen.batch_norm,
            "precision": chosen.precision,
            "device": chosen.device,
            "rounds": chosen.rounds,
            "seed": chosen.seed,
            "epochs": chosen.epochs,
            "confidence": chosen.confidence,
        },
        "environment": runs[0]["environment"],
        "runs": [_run(run, path, task.out) for run, path in found],
        "scaling": efficiency.entries(runs, task.ways, task.mode),
    }


def validate(found: Any) -> None:
    """Check the object against its schema, and that its parts do not contradict each other.

    Raises:
        Refused: with the path of the first fault, and what is allowed there.
    """
    result_file.check_schema(found, SCHEMA)
    for fault in efficiency.faults(found):
        raise Refused(fault)


def write(found: Mapping[str, Any], folder: Path) -> Path:
    """Validate the object and write `folder/result.json` atomically; return that path.

    Raises:
        Refused: as `validate` and `compare.results.result_file.replace`.
    """
    validate(found)
    return result_file.replace(folder / result_file.FILE_NAME, found)


def load(path: Path) -> dict[str, Any]:
    """Read and validate the result file of a scaling; files of other kinds are refused.

    Raises:
        Refused: with the file's name, for a file that cannot be read, or is refused by `validate`.
    """
    try:
        found: Any = untrusted.parse(untrusted.read(path, untrusted.SIZE_LIMIT, result_file.KIND))
        validate(found)
    except Refused as error:
        raise Refused(f"{path}: {error}") from None
    return found


def _run(run: Mapping[str, Any], path: Path, folder: Path) -> dict[str, Any]:
    agreement = run["agreement"]
    return {
        "devices": run["spec"]["devices"],
        "batch_size": run["spec"]["batch_size"],
        "file": path.relative_to(folder).as_posix(),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "agreement": {name: agreement[name] for name in ("status", "reason", "first_mismatch")},
        "comparisons": run["comparisons"],
        "voided": run["voided"],
    }
