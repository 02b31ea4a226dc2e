"""A workload as JSON: what travels to a child, and what a result says of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from compare.base import workloads
from compare.base.interface import RunSpec
from compare.base.task import Input, Output, Task
from compare.base.workloads import ModelSpec, OptimizerSpec, Schedule, Workload


def read_workload(spec: RunSpec) -> Workload:
    """Return the workload that a child is to build.

    Raises:
        Refused: for a name that nobody described.
    """
    return workloads.get(spec.workload) if spec.described is None else from_json(spec.described)


def to_json(workload: Workload) -> dict[str, Any]:
    """Return a whole workload as JSON types. `from_json` is the inverse."""
    return json.loads(json.dumps(asdict(workload)))  # tuples become lists


def from_json(values: Mapping[str, Any]) -> Workload:
    """Return the workload of what `to_json` gave."""
    optimizer = dict(values["optimizer"])
    schedule = dict(optimizer["schedule"])
    schedule["milestones"] = tuple(schedule["milestones"])
    optimizer |= {"betas": tuple(optimizer["betas"]), "schedule": Schedule(**schedule)}
    made = dict(values)
    made |= {"model": read_model(values["model"]), "optimizer": OptimizerSpec(**optimizer)}
    made["task"] = read_task(values.get("task"))
    return Workload(**made)


def read_model(values: Mapping[str, Any]) -> ModelSpec:
    """Return the model of a workload's JSON."""
    made = dict(values)
    made["image"] = tuple(values["image"])
    inputs = list[Input]()
    for each in values.get("inputs", ()):
        described: dict[str, Any] = dict(each)
        described["shape"] = tuple(each["shape"])
        inputs.append(Input(**described))
    made["inputs"] = tuple(inputs)
    return ModelSpec(**made)


def read_task(values: Mapping[str, Any] | None) -> Task | None:
    """Return the task of a workload's JSON."""
    if values is None:
        return None
    outputs = list[Output]()
    for each in values["outputs"]:
        made: dict[str, Any] = dict(each)
        made["shape"] = None if each["shape"] is None else tuple(each["shape"])
        outputs.append(Output(**made))
    return Task(tuple(outputs))


def describe_arithmetic(workload: Workload) -> dict[str, Any]:
    """Return what decides the arithmetic of a workload, as JSON types (not how the variables of a pair are called)."""
    model, task = workload.model, workload.task
    special = {"inputs": [asdict(each) for each in model.inputs]} if model.inputs else {}
    special |= {} if task is None else {"task": asdict(task)}
    special |= {"pruned": model.pruned} if model.pruned else {}
    arguments = {key: value for key, value in model.arguments.items() if key != "names"}
    values = {
        "image": model.image,
        "classes": model.classes,
        "model": {"family": model.family, **arguments, **special},
        "optimizer": asdict(workload.optimizer),
        "label_smoothing": workload.label_smoothing,
    }
    return json.loads(json.dumps(values))  # tuples become lists
