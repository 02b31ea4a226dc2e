"""Both sides' effective settings beside each other, with what differs marked: whether the comparison is a fair one."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from compare.agreement.effective_settings import SHARED, are_alike
from compare.report.document import Table
from compare.report.sentences import DASH, setting

_DIFFERS = "differs"
_DECIDES = "differs, and decides the mathematics"
_ONE_SIDED = "not on every side"


def table(result: Mapping[str, Any]) -> Table | None:
    """Return the table of effective settings and versions, a column a contender; None where none were read back."""
    contenders: Sequence[Mapping[str, Any]] = result["contenders"]
    settings: list[Mapping[str, Any]] = [each["settings"] for each in contenders]
    if not any(settings):
        return None
    rows: list[tuple[str, ...]] = [("backend", *(each["backend"] for each in contenders), "")]
    rows += [("tuning asked for", *(each["tuning"] for each in contenders), "")]
    for name in _keys(settings):
        rows += _rows(name, [each.get(name, _MISSING) for each in settings], decides=name in SHARED)
    variables: list[Mapping[str, Any]] = [each.get("variables", {}) for each in contenders]
    for name in _keys(variables):
        rows += _rows(f"variable {name}", [each.get(name, _MISSING) for each in variables], decides=False)
    versions: list[Mapping[str, Any]] = [each["versions"] for each in contenders]
    rows += [
        (f"version of {name}", *(_text(each.get(name, _MISSING)) for each in versions), "") for name in _keys(versions)
    ]
    caption = (
        "Effective settings, most of them read back from the framework after the model was built; a dash stands for "
        "a switch that a side does not have. Variables are those that samestep gave a contender's processes, merged "
        "with the user's."
    )
    return Table(
        "settings",
        caption,
        ("setting", *(each["name"] for each in contenders), "remark"),
        rows,
        f"Setting: {setting(result)}.",
        marked=frozenset(index for index, row in enumerate(rows) if row[-1] in (_DIFFERS, _DECIDES)),
        prose=True,
    )


class _Missing:
    """A setting that a side does not have; unlike any value, None included."""


_MISSING = _Missing()


def _keys(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _rows(name: str, values: Sequence[Any], *, decides: bool) -> Iterator[tuple[str, ...]]:
    """Yield the row of one setting; of one that is a table of its own, a summary and each entry that differs."""
    if not all(isinstance(value, Mapping) for value in values):
        yield (name, *map(_text, values), _remark(values, decides))
        return
    inner = [cast("Mapping[str, Any]", value) for value in values]
    yield (name, *map(_summary, inner), _remark(inner, decides))
    for key in _keys(inner):
        entries = [each.get(key, _MISSING) for each in inner]
        if remark := _remark(entries, decides):
            yield (f"{name} of {key}", *map(_text, entries), remark)


def _remark(values: Sequence[Any], decides: bool) -> str:
    if all(are_alike(value, values[0]) for value in values):
        return ""
    if decides:
        return _DECIDES
    return _ONE_SIDED if any(value is _MISSING for value in values) else _DIFFERS


def _summary(values: Mapping[str, Any]) -> str:
    counts = Counter(_text(value) for value in values.values())
    return ", ".join(f"{text} ({count} of {len(values)})" for text, count in counts.items()) or "none"


def _text(value: Any) -> str:
    if value is _MISSING:
        return DASH
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
