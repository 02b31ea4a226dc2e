"""The typed result: it holds every key of a result file, and writes the same object back."""

import dataclasses
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest

from compare.results import model, result_file
from tests.unit.result_factory import make_result, make_watched

SCHEMA = result_file.load_schema(result_file.SCHEMA)

OBJECTS = {
    model.Result: SCHEMA,
    model.Spec: SCHEMA["definitions"]["spec"],
    model.PairSpec: SCHEMA["definitions"]["pair"],
    model.PairSide: SCHEMA["definitions"]["pair"]["properties"]["sides"]["additionalProperties"],
    model.Contender: SCHEMA["definitions"]["contender"],
    model.Latency: SCHEMA["definitions"]["latency"],
    model.StepTimes: SCHEMA["definitions"]["step_seconds"],
    model.Interval: SCHEMA["definitions"]["interval"],
    model.Memory: SCHEMA["definitions"]["memory"],
    model.Energy: SCHEMA["definitions"]["energy"],
    model.Communication: SCHEMA["definitions"]["communication"],
    model.Training: SCHEMA["definitions"]["training"],
    model.Comparison: SCHEMA["definitions"]["comparison"],
    model.Gate: SCHEMA["definitions"]["gates"]["items"],
    model.TensorEvidence: SCHEMA["definitions"]["tensor"],
    model.Agreement: SCHEMA["definitions"]["agreement"],
    model.Pair: SCHEMA["definitions"]["agreement"]["properties"]["pairs"]["items"],
    model.Trajectory: SCHEMA["definitions"]["agreement"]["properties"]["trajectory"]["additionalProperties"],
    model.Voided: SCHEMA["properties"]["voided"]["items"],
    model.Gpu: SCHEMA["definitions"]["telemetry"]["properties"]["others"]["items"],
    model.Telemetry: SCHEMA["definitions"]["telemetry"],
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_class_names_the_keys_of_its_schema(kind: type) -> None:
    named = {field.name for field in dataclasses.fields(kind)} - {"extra"}
    assert named == set(OBJECTS[kind]["properties"])


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_field_may_be_none_where_the_schema_has_null_and_there_only(kind: type) -> None:
    hints = get_type_hints(kind)
    for name, schema in OBJECTS[kind]["properties"].items():
        if not _has_default(kind, name):
            assert _has_none(hints[name]) == _has_null(schema), f"{kind.__name__}.{name}"


@pytest.mark.parametrize("made", [make_result(), make_watched((3,))])
def test_a_result_is_written_as_it_was_read(made: dict[str, Any]) -> None:
    assert model.to_json(model.from_json(made)) == made


def test_keys_that_nobody_knows_survive() -> None:
    made = make_result()
    made["new"] = {"a": [1]}
    made["spec"]["new"] = made["contenders"][1]["new"] = made["telemetry"]["new"] = [None]
    result = model.from_json(made)
    assert result.spec.extra == {"new": [None]}
    assert model.to_json(result) == made


def test_a_result_reads_as_objects() -> None:
    result = model.from_json(make_result())
    step = result.contenders[0].step_seconds
    assert step
    assert step.interval
    assert (step.interval.low, step.samples[0][0]) == (2.5e-3 * 0.99, 2.5e-3)
    assert result.spec.image == (8, 8, 1)
    assert result.agreement.pairs[0].gates[0].limit == 1e-10
    assert (result.device_name, result.environment.samestep) == ("Example CPU", None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.spec.seed = 1  # pyright: ignore[reportAttributeAccessIssue]


def _has_default(kind: type, name: str) -> bool:
    return any(each.name == name and each.default is not dataclasses.MISSING for each in dataclasses.fields(kind))


def _has_none(hint: Any) -> bool:
    return isinstance(hint, UnionType) and type(None) in get_args(hint)


def _has_null(schema: dict[str, Any]) -> bool:
    if "$ref" in schema:
        return _has_null(SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(map(_has_null, schema["anyOf"]))
    return None in schema.get("enum", ()) or "null" in schema.get("type", ()) or schema.get("type") == "null"
