"""The result file: `result.json`, one self-contained object whose shape is `result.schema.json` (JSON Schema draft-07).

The same checks hold on writing and on reading, so a file that samestep wrote is a file that samestep reads. Reading
trusts nothing: the file may come from somebody else.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from reprlib import Repr
from typing import Any, NoReturn, cast

import fastjsonschema

from compare import consistency, files
from compare.interface import Refused

SCHEMA_VERSION = 1
FILE_NAME = "result.json"
SIZE_LIMIT = 64 * 2**20
"""Most bytes of a result file, written or read."""

_INTEGER_LIMIT = 2**63  # beyond it no other JSON reader agrees on the value
_DEPTH_LIMIT = 32
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def validate(result: Any) -> None:
    """Check a result object against the schema, and that it holds nothing that JSON cannot.

    Raises:
        Refused: with the path of the first fault, for example `contenders[0].status`, and what is allowed there. Also
            for NaN and Infinity, for integers outside 64 bits, and for what contradicts itself, such as a comparison
            that claims a speed although the agreement of its pair failed (`compare.consistency`).
    """
    _plain_json(result, "", _DEPTH_LIMIT)
    try:
        _validator()(result)
    except fastjsonschema.JsonSchemaValueException as error:
        raise Refused(_explain(error)) from None
    consistency.check(result)


def write(result: Mapping[str, Any], folder: Path) -> Path:
    """Validate the result and write `folder/result.json` atomically; return that path.

    Raises:
        Refused: as `validate` and `replace`.
    """
    validate(result)
    return replace(folder / FILE_NAME, result)


def replace(target: Path, value: Mapping[str, Any]) -> Path:
    """Write a JSON object as the file `target` atomically (`compare.files`); return that path.

    The folder is made where missing.

    Raises:
        ValueError: for NaN and infinity.
        Refused: for a text over `SIZE_LIMIT`, or where the file system refuses; the old file, if any, is then as it
            was, and no temporary file stays.
    """
    data = json.dumps(value, allow_nan=False, indent=1).encode("ascii") + b"\n"
    if len(data) > SIZE_LIMIT:
        raise Refused(f"{target} would have {len(data):,} bytes; allowed: at most {SIZE_LIMIT:,}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"cannot write {target}: {error.strerror or error}") from error
    files.write({target: data})
    return target


def load(path: Path) -> dict[str, Any]:
    """Read and validate a result file.

    Raises:
        Refused: with the file's name, for a file that cannot be read, is over `SIZE_LIMIT`, is no JSON (truncated,
            not UTF-8, NaN or Infinity, a key twice, an integer too long), comes from a newer samestep, or breaks the
            schema.
    """
    try:
        result = _parse(_read(path))
        _check_version(result)
        validate(result)
    except Refused as error:
        raise Refused(f"{path}: {error}") from None
    return cast("dict[str, Any]", result)


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise Refused("is not a regular file; allowed: a result.json")
        with path.open("rb") as stream:
            data = stream.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise Refused(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > SIZE_LIMIT:
        raise Refused(f"is too large; allowed: at most {SIZE_LIMIT:,} bytes")
    return data


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise Refused(f"is not UTF-8 (byte {error.start}); allowed: a JSON object") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise Refused(f"is not complete, valid JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise Refused("is nested too deeply; allowed: the depth of the schema") from None
    except ValueError:  # int() of more digits than sys.get_int_max_str_digits()
        raise Refused("holds an integer of too many digits; allowed: 64-bit integers") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise Refused(f"holds the key {_SHORT.repr(key)} twice in one object; allowed: once")
        result[key] = value
    return result


def _no_constant(literal: str) -> NoReturn:
    raise Refused(f"holds the literal {literal}, which is no JSON; allowed: finite numbers and null")


def _check_version(result: Any) -> None:
    version = cast("dict[str, Any]", result).get("schema_version") if isinstance(result, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise Refused(
            f"was written by a newer samestep (schema_version {_SHORT.repr(version)}; this one reads up to "
            f"{SCHEMA_VERSION}): update samestep"
        )


def _plain_json(value: Any, path: str, depth: int) -> None:
    if not depth:
        raise Refused(f"the result is nested too deeply or contains itself; allowed: {_DEPTH_LIMIT} levels")
    if value is None or isinstance(value, (str, bool)):
        return
    where = path or "the result"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(f"{where} is {value}; allowed: a finite number, or null where the schema has it")
    elif isinstance(value, int):
        if not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
            raise Refused(f"{where} is an integer of {value.bit_length()} bits; allowed: 64-bit integers")
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise Refused(f"{where} has the key {_SHORT.repr(key)}; allowed: strings")
            _plain_json(item, f"{path}.{key}" if path else key, depth - 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("Sequence[Any]", value)):
            _plain_json(item, f"{path}[{index}]", depth - 1)
    else:
        raise Refused(f"{where} is of type {type(value).__name__}; allowed: JSON types")


@lru_cache(maxsize=1)
def _validator() -> Callable[[Any], Any]:
    text = (Path(__file__).parent / "result.schema.json").read_text(encoding="utf-8")
    # fastjsonschema turns the schema, which is ours, into Python code; no result ever becomes code.
    return cast("Callable[[Any], Any]", fastjsonschema.compile(json.loads(text), use_formats=False))


def _explain(error: fastjsonschema.JsonSchemaValueException) -> str:
    name = str(error.name or "data")
    path = name.removeprefix("data").removeprefix(".") or "the result"
    value: Any = error.value
    if error.rule == "required":
        missing = [key for key in cast("list[str]", error.rule_definition) if key not in value]
        return f"{path} lacks {', '.join(missing)}; all of these are required there"
    allowed = str(error.message).removeprefix(name).strip()
    return f"{path} is {_SHORT.repr(value)}; it {allowed}"
