"""Files that an attacker, a bad disk or a newer samestep wrote: refused by name, before they cost anything."""

import json
import os
import sys
import tracemalloc
from pathlib import Path

import pytest

from compare.base.interface import Refused
from compare.base.untrusted import ITEM_LIMIT, SIZE_LIMIT
from compare.results.result_file import load
from tests.unit.result_factory import make_result

_TEXT = json.dumps(make_result())
_HOSTILE = {
    "empty": (b"", "is empty"),
    "truncated": (_TEXT[:-40].encode(), "not complete, valid JSON"),
    "two objects": ((_TEXT + _TEXT).encode(), "not complete, valid JSON: Extra data"),
    "two byte order marks": (b"\xef\xbb\xbf" * 2 + _TEXT.encode(), "is no JSON file"),
    "UTF-16": (_TEXT.encode("utf-16"), "not UTF-8"),
    "not UTF-8": (_TEXT.replace("digits-cnn", "\xff").encode("latin-1"), "not UTF-8"),
    "NaN": (_TEXT.replace("12.34", "NaN").encode(), "the literal NaN"),
    "Infinity": (_TEXT.replace("12.34", "-Infinity").encode(), "the literal -Infinity"),
    "overflow": (_TEXT.replace("12.34", "1e999").encode(), r"contenders\[0\]\.compile_seconds is inf"),
    "key twice": (_TEXT.replace('"id":', '"created": "x", "id":').encode(), "the key 'created' twice"),
    "huge integer": (_TEXT.replace("12.34", "9" * 5000).encode(), "integer of too many digits"),
    "large integer": (_TEXT.replace("12.34", "9" * 400).encode(), r"contenders\[0\]\.compile_seconds is an integer of"),
    "newer": (
        _TEXT.replace('"schema_version": 1', '"schema_version": 2').encode(),
        r"newer samestep \(schema_version 2",
    ),
    "older": (_TEXT.replace('"schema_version": 1', '"schema_version": 0').encode(), "schema_version is 0"),
    "version true": (_TEXT.replace('"schema_version": 1', '"schema_version": true').encode(), "schema_version is True"),
    "array": (b"[1]", "is JSON, but no result of samestep"),
    "deep": (b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
    "somewhat deep": (_TEXT.replace("12.34", "[" * 40 + "]" * 40).encode(), "nested too deeply"),
    "ten million digits": (_TEXT.replace("12.34", "9" * 10**7).encode(), "integer of too many digits"),
    "ten million digits and a point": (_TEXT.replace("12.34", "9" * 10**7 + ".5").encode(), "compile_seconds is inf"),
    "many values": (b"[" + b"[]," * (ITEM_LIMIT // 2 + 1) + b"0]", "holds too many values; allowed: at most 5,000,000"),
    "script in a name": (
        _TEXT.replace('"name": "jax"', '"name": "<script>alert(1)</script>"').encode(),
        r"contenders\[1\]\.name is '<script>",
    ),
    "control code in a name": (
        _TEXT.replace('"contender": "jax"', '"contender": "jax\\u001b[2J"').encode(),
        r"comparisons\[0\]\.contender is 'jax\\x1b",
    ),
    "no time": (_TEXT.replace("0.0025,", "1e-300,", 1).encode(), "estimate is 1e-300"),
    "name of a megabyte": (
        _TEXT.replace('"workload": "digits-cnn"', f'"workload": "{"x" * 10**6}"').encode(),
        "holds 'xxx.*too long; allowed: 10,000 characters",
    ),
    "long name": (_TEXT.replace('"digits-cnn"', f'"{"x" * 10**4}"').encode(), "spec.workload is 'x"),
    "key of a megabyte": (_TEXT.replace('"python"', f'"{"x" * 10**6}": 1, "python"').encode(), "allowed: 1,000 char"),
    "long key": (_TEXT.replace('"python"', f'"{"x" * 1000}": 1e999, "python"').encode(), r"x\.\.\. is inf"),
    "much text": (
        _TEXT.replace('"python"', f'"texts": {json.dumps(["x" * 10**4] * 401)}, "python"').encode(),
        "holds too much text",
    ),
}


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(b"\xef\xbb\xbf" + _TEXT.encode())
    assert load(tmp_path / "result.json") == make_result()


@pytest.mark.parametrize("kind", _HOSTILE)
def test_hostile_file_is_refused_with_its_name(kind: str, tmp_path: Path) -> None:
    data, message = _HOSTILE[kind]
    path = tmp_path / "other.json"
    path.write_bytes(data)
    with pytest.raises(Refused, match=message) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert len(str(refused.value)) < 500


def test_a_newer_file_of_another_shape_is_still_called_newer(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"schema_version": 7}')
    with pytest.raises(Refused, match="newer samestep"):
        load(path)


def test_too_large_a_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with path.open("wb") as stream:
        stream.truncate(SIZE_LIMIT + 1)
    with pytest.raises(Refused, match=r"result\.json: is too large; allowed: at most 67,108,864 bytes"):
        load(path)


def test_nothing_of_too_large_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with path.open("wb") as stream:
        stream.truncate(2**40)  # takes no room on the disk
    tracemalloc.start()
    with pytest.raises(Refused, match="is too large"):
        load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_python_may_be_told_to_read_any_integer(tmp_path: Path) -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        test_hostile_file_is_refused_with_its_name("ten million digits", tmp_path)
    finally:
        sys.set_int_max_str_digits(limit)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, message in (
        (tmp_path, "not a regular file"),
        (pipe, "not a regular file"),
        (tmp_path / "none.json", "No such file"),
        (Path("a\0b"), "cannot be read|not a regular file"),
    ):
        with pytest.raises(Refused, match=message):
            load(path)
