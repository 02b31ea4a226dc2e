import json
import os
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import compare.base.untrusted
import compare.results.result_file
from compare.agreement.gates import RULES
from compare.base.interface import Refused
from compare.base.precisions import PRECISIONS
from compare.results.result_file import (
    find_file,
    is_readable_size,
    load,
    validate,
    write,
    write_or_spare,
)
from tests.unit.result_factory import make_comparison, make_contender, make_result, typed


def test_a_result_of_fit_is_told_from_a_broken_one() -> None:
    fitted = Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "fit-jax" / "fit.json"
    with pytest.raises(Refused, match=r"is of samestep fit, which no command reads again; allowed: "):
        load(fitted)
    with pytest.raises(Refused, match=r"fit-jax/fit\.json: is of samestep fit"):
        load(find_file(fitted.parent))


def test_a_judgement_of_reproduce_is_told_from_a_broken_result(tmp_path: Path) -> None:
    path = tmp_path / "reproduction.json"
    path.write_text('{"stored": {}, "result": "id", "differences": [], "claims": []}')
    with pytest.raises(
        Refused, match=r"reproduction\.json: is of samestep reproduce; allowed: the result\.json beside it"
    ):
        load(path)


def test_what_is_no_result_at_all_is_shown_as_json_has_it(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("null")
    with pytest.raises(Refused, match="is JSON, but no result of samestep"):
        load(path)


def test_a_folder_is_named_for_its_result_even_beside_one_of_fit(tmp_path: Path) -> None:
    assert find_file(tmp_path) == tmp_path / "result.json"
    for name in ("fit.json", "result.json"):
        (tmp_path / name).touch()
        assert find_file(tmp_path) == tmp_path / name


def _refusal(result: Any) -> str:
    with pytest.raises(Refused) as refused:
        validate(result)
    return str(refused.value)


def _changed(path: list[Any], value: Any) -> dict[str, Any]:
    result = make_result()
    place: Any = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


def test_a_result_is_kept_elsewhere_where_its_folder_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full" / "result.json").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(Refused, match=r"cannot write .*full/result.json: .*; the result is kept: (.*)$") as refused:
        write_or_spare(typed(make_result()), tmp_path / "full")
    assert load(Path(str(refused.value).rpartition(": ")[2])) == make_result()
    assert write_or_spare(typed(make_result()), tmp_path / "new") == tmp_path / "new" / "result.json"


def test_a_result_that_is_too_large_is_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compare.base.untrusted, "ITEM_LIMIT", 100)
    with pytest.raises(Refused, match=r"out/result.json is not written: it holds too many values; .*") as refused:
        write_or_spare(typed(make_result()), tmp_path / "out")
    (spared,) = tmp_path.rglob("*.json")
    assert str(refused.value).endswith(f"; the result is kept: {spared}")
    assert json.loads(spared.read_text()) == make_result()
    assert [*tmp_path.iterdir()] == [spared.parent]


def test_whether_a_result_fits_is_told_of_one_that_holds_no_json_too() -> None:
    assert is_readable_size(typed(make_result(created=float("nan"))))


def test_a_result_that_cannot_be_kept_anywhere_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(contents: dict[Path, bytes]) -> None:
        raise Refused(f"cannot write {next(iter(contents))}: No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compare.results.result_file.files, "write", full)
    with pytest.raises(Refused, match="No space left on device"):
        write_or_spare(typed(make_result()), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_the_example_is_valid_and_survives_the_file(tmp_path: Path) -> None:
    path = write(typed(make_result()), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "result.json"
    assert load(path) == make_result()


def test_the_schema_is_draft_07_and_a_second_implementation_agrees() -> None:
    schema = json.loads((Path(compare.results.__file__).parent / "result.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(make_result())
    assert not validator.is_valid(_changed(["comparisons", 0, "ratio"], None))


@pytest.mark.parametrize("place", [["spec", "precision"], ["agreement", "precision"]])
def test_a_precision_is_one_that_samestep_has(place: list[Any]) -> None:
    for precision in PRECISIONS:
        validate(_changed(["agreement", "precision"], precision))
    with pytest.raises(Refused, match=f"{'.'.join(place)} is 'float7'"):
        validate(_changed(place, "float7"))


def test_a_gate_is_one_that_samestep_has() -> None:
    for name in RULES:
        validate(_changed(["agreement", "gates", 0, "name"], name))
    with pytest.raises(Refused, match=r"gates\[0\].name is 'taste'"):
        validate(_changed(["agreement", "gates", 0, "name"], "taste"))


def test_what_did_not_happen_is_null() -> None:
    failed = make_contender(
        "jax",
        status="oom",
        reason="out of device memory",
        compile_seconds=None,
        first_step_seconds=None,
        warmup_seconds=None,
        steady=None,
        step_seconds=None,
        images_per_second=None,
        memory=None,
        training=None,
    )
    invalid = make_comparison(verdict="INVALID", ratio=None, detectable=None, rounds=0, reason="jax ran out of memory")
    validate(make_result(contenders=[make_contender(), failed], comparisons=[invalid]))


def test_further_keys_are_allowed() -> None:
    validate(_changed(["contenders", 0, "energy_joules"], 12.5))


_ADDED_LATER = {"kind", "task", "batch_sizes"}
"""Keys that older results lack, and they still load."""


@pytest.mark.parametrize("key", sorted(make_result()))
def test_every_key_of_the_top_level_is_required(key: str) -> None:
    result = make_result()
    del result[key]
    assert _refusal(result).startswith(f"the result lacks {key}:")


@pytest.mark.parametrize("place", ["spec", "contenders", "comparisons", "agreement"])
def test_every_key_below_is_required(place: str) -> None:
    later = _ADDED_LATER | ({"batch_size"} if place == "comparisons" else set())
    for key in _first(make_result()[place]).keys() - later:
        result = make_result()
        del _first(result[place])[key]
        assert f" lacks {key}:" in _refusal(result)


def _first(value: Any) -> dict[str, Any]:
    return value[0] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["contenders", 0, "status"], "fine", "contenders[0].status is 'fine'; it must be one of ['ok', 'oom',"),
        (["contenders", 1, "memory", "live_peak_bytes"], 1.5, "contenders[1].memory.live_peak_bytes is 1.5"),
        (["contenders", 1, "step_seconds", "samples", 2, 1], "1", "contenders[1].step_seconds.samples[2][1] is '1'"),
        (["contenders", 0, "training", "test_accuracy"], 98.3, "contenders[0].training.test_accuracy is 98.3"),
        (["spec", "precision"], "float1", "spec.precision is 'float1'"),
        (["spec", "device"], "auto", "spec.device is 'auto'"),
        (["spec", "image"], [8, 8], "spec.image is [8, 8]"),
        (["spec", "seed"], True, "spec.seed is True; it must be integer"),
        (["spec", "data_sha256"], "abc", "spec.data_sha256 is 'abc'"),
        (["created"], "31 January", "created is '31 January'"),
        (["created"], "2026-01-31T12:00:00+02:00", "created is '2026-01-31T12:00:00+02:00'"),
        (["schema_version"], 0, "schema_version is 0"),
        (["comparisons", 0, "verdict"], "WINS", "comparisons[0].verdict is 'WINS'"),
        (["comparisons", 0, "ratio"], None, "comparisons[0].ratio is null"),
        (["comparisons", 0], make_comparison(verdict="INVALID", reason=None), "comparisons[0].reason is null"),
        (["agreement", "gates", 0, "passed"], 1, "agreement.gates[0].passed is 1"),
        (["voided"], [{"round": 1}], "voided[0] lacks reason"),
    ],
)
def test_a_fault_is_named_with_its_place(path: list[Any], value: Any, message: str) -> None:
    assert _refusal(_changed(path, value)).startswith(message)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), np.float64("nan")])
def test_nan_is_refused_with_its_place(value: float, tmp_path: Path) -> None:
    result = _changed(["contenders", 1, "training", "loss", 1], value)
    assert _refusal(result).startswith(f"contenders[1].training.loss[1] is {float(value)}")
    with pytest.raises(Refused, match=r"environment\.load is nan"):
        write(typed(_changed(["environment", "load"], float("nan"))), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.int64(3), "environment.x is of type int64"),
        ({1, 2}, "environment.x is of type set"),
        (2**63, "environment.x is an integer of 64 bits"),
        ({1: 2}, "environment.x has the key 1"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: Any, message: str) -> None:
    assert _refusal(_changed(["environment", "x"], value)).startswith(message)


def test_a_result_that_contains_itself_is_refused() -> None:
    result = make_result()
    result["environment"]["self"] = result
    assert "nested too deeply" in _refusal(result)


def test_no_claim_of_speed_without_agreement() -> None:
    result = _changed(["agreement", "pairs", 0, "status"], "fail")
    assert _refusal(result).startswith(
        "comparisons[0].verdict is FASTER although the agreement of jax with torch failed"
    )
    result["agreement"]["status"] = "fail"
    validate({**result, "comparisons": [make_comparison(verdict="INVALID")]})


@pytest.mark.parametrize("broken", ["replace", "fsync", "interrupt", "invalid"])
def test_a_failed_write_leaves_the_old_file(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(typed(make_result()), tmp_path)
    before = path.read_bytes()

    def fail(*arguments: Any, **options: Any) -> None:
        if broken == "interrupt":
            raise KeyboardInterrupt
        raise OSError(28, "No space left on device")

    if broken != "invalid":
        monkeypatch.setattr(os, "replace" if broken == "replace" else "fsync", fail)
    result = _changed(["environment", "x"], object() if broken == "invalid" else "new")
    with pytest.raises((Refused, KeyboardInterrupt), match=r"No space left|of type object|^$"):
        write(typed(result), tmp_path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_is_taken_only_by_a_whole_file_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_replace(source: Any, target: Any) -> None:
        assert Path(source).parent == Path(target).parent
        json.loads(Path(source).read_text())
        events.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", watched_replace)
    write(typed(make_result()), tmp_path)
    assert events == ["fsync", "replace"]


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=r"cannot write .*result\.json"):
        write(typed(make_result()), tmp_path / "file")


def test_what_load_would_refuse_for_its_size_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.base.untrusted, "SIZE_LIMIT", 1000)
    with pytest.raises(Refused, match="allowed: at most 1,000"):
        write(typed(make_result()), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_others_may_read_the_file(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        assert write(typed(make_result()), tmp_path).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(mask)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ["contenders", 0, "step_seconds", "interval", "low"],
            1.0,
            "contenders[0].step_seconds.interval is from ",
        ),
        (["comparisons", 0, "ratio", "high"], 0.1, "comparisons[0].ratio is from "),
        (["telemetry", "samples"], {"seconds": [1.0], "own": []}, "telemetry.samples.own has not one value a sample"),
        (["telemetry", "reason"], None, "telemetry.samples lacks seconds, sm_clock_mhz"),
        (["spec", "batch_size"], 64.0, "spec.batch_size is 64.0; allowed: a whole number without a fraction"),
        (["spec", "rounds"], 10.0, "spec.rounds is 10.0"),
        (
            ["telemetry", "samples"],
            {"seconds": [1.0], "clock_reasons": [4.0]},
            "telemetry.samples.clock_reasons[0] is 4.0",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(path: list[Any], value: Any, message: str) -> None:
    assert _refusal(_changed(path, value)).startswith(message)


def test_validation_leaves_the_result_as_it_was() -> None:
    result = make_result()
    copy = deepcopy(result)
    validate(result)
    assert result == copy
