"""Read and write `result.json`, one object of the shape in `result.schema.json` (JSON Schema draft-07).

Reading and writing make the same checks, so samestep can read every file that it wrote. Reading trusts nothing, because
anybody may have written the file.
"""

import json
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import fastjsonschema

from compare.agreement.gates import RULES
from compare.base import files, untrusted
from compare.base.interface import Refused
from compare.base.precisions import PRECISIONS
from compare.base.untrusted import SHORT, SIZE_LIMIT
from compare.results import consistency, model
from compare.results.model import Result
from compare.settings import options

SCHEMA_VERSION = 1
FILE_NAME = "result.json"
KIND = f"a {FILE_NAME}, or its folder"
ANY_KIND = f"a {FILE_NAME}, its folder, or a bundle"
FIT_NAME = "fit.json"
SCHEMA = "result.schema.json"


def make_head(schema_version: int, command: Sequence[str]) -> dict[str, Any]:
    """Return the first keys of every command's object: the schema's version, an id, the time, and the command."""
    return {
        "schema_version": schema_version,
        "id": uuid.uuid4().hex,
        "created": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command": tuple(command),
    }


def validate(value: Any) -> Result:
    """Return a result object as a typed result, if it fits the schema and does not contradict itself.

    Raises:
        Refused: with the path of the first fault, for example `contenders[0].status`, and what is allowed there. Also
            for NaN, infinity and integers over 64 bits.
    """
    check_schema(value, SCHEMA)
    result = model.from_json(value)
    consistency.check(result)
    return result


def check_schema(value: Any, schema: str) -> None:
    """Check a JSON value against a schema of the package, given by its file name.

    Raises:
        Refused: with the path of the first fault, as `validate`.
    """
    untrusted.check_plain(value)
    try:
        _validator(schema)(value)
    except fastjsonschema.JsonSchemaValueException as error:
        raise Refused(_explain(error)) from None


_NOT_OF_FIT = ("comparisons", "agreement", "voided")


class OfScale(Refused):
    """A file is a scaling's, which `compare.studies.scaling_result` reads."""


def write(result: Result, folder: Path) -> Path:
    """Check the result, write `folder/result.json` atomically, and return its path.

    Raises:
        Refused: as `validate` and `replace`.
    """
    return replace(folder / FILE_NAME, _validate_object(result))


def write_or_spare(result: Result, folder: Path) -> Path:
    """Write the result as `write` does, or to a temporary folder if `folder` refuses it. The result took hours.

    In a temporary folder it may be too large for `read`.

    Raises:
        Refused: as `validate`. Also if the folder refused the file. Then the message says where the result is.
    """
    value = _validate_object(result)
    try:
        return replace(folder / FILE_NAME, value)
    except Refused as error:
        raise Refused(f"{error}; the result is kept: {_write_to_spare_folder(_encode(value))}") from None


def is_readable_size(result: Result) -> bool:
    """Tell whether the result's file is small enough for `read`."""
    try:
        untrusted.check_size(_encode(model.to_json(result), allow_nan=True))  # `write` refuses NaN and names its place
    except Refused:
        return False
    return True


def _validate_object(result: Result) -> dict[str, Any]:
    value = model.to_json(result)
    validate(value)
    return value


def _write_to_spare_folder(data: bytes) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="samestep-result-"))
    try:
        return replace_bytes(folder / FILE_NAME, data)
    except Refused:
        folder.rmdir()
        raise


def _encode(value: Mapping[str, Any], *, allow_nan: bool = False) -> bytes:
    return json.dumps(value, allow_nan=allow_nan, indent=1).encode("ascii") + b"\n"


def replace(target: Path, value: Mapping[str, Any]) -> Path:
    """Write a JSON object to the file `target` atomically (`compare.base.files`), and return its path.

    A missing folder is made.

    Raises:
        ValueError: for NaN and infinity.
        Refused: the text is too large for `load`, or the file system refuses. Then an old file is unchanged, and no
            temporary file remains.
    """
    data = _encode(value)
    try:
        untrusted.check_size(data)
    except Refused as error:
        raise Refused(f"{target} is not written: it {error}") from None
    return replace_bytes(target, data)


def replace_bytes(target: Path, data: bytes) -> Path:
    """Write bytes to a file atomically as `replace` does, and return its path.

    Raises:
        Refused: the file cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"cannot write {target}: {error.strerror or error}") from error
    files.write({target: data})
    return target


def find_file(path: Path) -> Path:
    """Return the result file that a user names. If the path is a folder, return the file in it.

    A folder may hold only a result of `samestep fit`. Then return that file, so that its reader can refuse it.

    Raises:
        Refused: the folder holds no result, but a bundle, or folders with results: it is of a campaign, for example.
    """
    try:
        if not path.is_dir():
            return path
        file = path / FILE_NAME
        if file.exists():
            return file
        bundles = sorted(path.glob("*.zip"))
        found = [*path.glob(f"*/{FILE_NAME}")] or [*path.glob(f"*/*/{FILE_NAME}")]
        below = sorted(found, key=lambda each: each.stat().st_mtime)
    except OSError:  # a name too long, for example
        return path
    if (path / FIT_NAME).exists():
        return path / FIT_NAME
    if bundles:
        raise Refused(f"{path} holds no {FILE_NAME}, but a bundle: {bundles[-1]}")
    if not below:
        return file
    newest = below[-1].parent
    if len(below) == 1:
        raise Refused(f"{path} holds no {FILE_NAME}, but its folder {newest} does")
    raise Refused(f"{path} holds no {FILE_NAME}, but {len(below)} of its folders do; the newest is {newest}")


def read(path: Path) -> Result:
    """Read and check a result file.

    Raises:
        OfScale, Refused: with the file's name, as `parse`.
        Refused: for a file that cannot be read or is over `SIZE_LIMIT`.
    """
    try:
        return parse(untrusted.read(path, SIZE_LIMIT, KIND))
    except Refused as error:
        raise type(error)(f"{path}: {error}") from None


def load(path: Path) -> dict[str, Any]:
    """Return the JSON object of a result file, checked as `read` does."""
    return model.to_json(read(path))


def parse(data: bytes) -> Result:
    """Return the result that the bytes of a result file hold.

    Raises:
        OfScale: for a result of `samestep scale`.
        Refused: for bytes that are not JSON, a result of another command or another samestep, and faults that
            `validate` finds.
    """
    value = untrusted.parse(data, allowed=ANY_KIND)
    keys = cast("dict[str, Any]", value).keys() if isinstance(value, dict) else set[str]()
    if "scaling" in keys:
        raise OfScale(
            "is of samestep scale; allowed: the result of one number of devices, such as devices-1/result.json"
        )
    if "contenders" in keys and keys.isdisjoint(_NOT_OF_FIT):
        raise Refused(
            "is of samestep fit, which no command reads again; allowed: a result of compare or agree, for a report "
            "also of scale"
        )
    if "claims" in keys and "contenders" not in keys:
        raise Refused(f"is of samestep reproduce; allowed: the {FILE_NAME} beside it")
    if "schema_version" not in keys:
        raise Refused(f"is JSON, but no result of samestep; allowed: {ANY_KIND}")
    _check_version(value)
    return validate(value)


def _check_version(result: Any) -> None:
    version = cast("dict[str, Any]", result).get("schema_version") if isinstance(result, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise Refused(
            f"was written by a newer samestep (schema_version {SHORT.repr(version)}; this one reads up to "
            f"{SCHEMA_VERSION}): update samestep"
        )


def load_schema(name: str) -> dict[str, Any]:
    """Return a schema by its file's name, completed by the definitions of precisions, gates and options."""
    whole = json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    if name == SCHEMA:
        whole["definitions"]["precision"]["enum"] = list(PRECISIONS)
        whole["definitions"]["gate"]["enum"] = list(RULES)
        spec = whole["definitions"]["spec"]
        spec["properties"] = options.make_spec_schema() | spec["properties"]
    return whole


@lru_cache
def _validator(name: str) -> Callable[[Any], Any]:
    # fastjsonschema turns a schema into Python code. Schemas are part of the package, and results never become code.
    # A schema may refer to another by its file's name, which is an address without a scheme.
    compiled = fastjsonschema.compile(load_schema(name), handlers={"": load_schema}, use_formats=False)
    return cast("Callable[[Any], Any]", compiled)


def _explain(error: fastjsonschema.JsonSchemaValueException) -> str:
    name = str(error.name or "data")
    path = untrusted.shorten_place(name.removeprefix("data").removeprefix("."))
    value: Any = error.value
    if error.rule == "required":
        missing = [key for key in cast("list[str]", error.rule_definition) if key not in value]
        return f"{path} lacks {', '.join(missing)}: the file is incomplete, or an older samestep wrote it"
    allowed = str(error.message).removeprefix(name).strip()
    return f"{path} is {'null' if value is None else SHORT.repr(value)}; it {allowed}"
