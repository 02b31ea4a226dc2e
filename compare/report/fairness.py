"""Show whether a comparison is fair: the contenders' effective settings side by side, with differences marked."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from compare.agreement.effective_settings import SHARED, are_alike
from compare.base.typed_json import Json
from compare.report.document import Table
from compare.report.sentences import DASH, describe_setting
from compare.results.model import Result

_DIFFERS = "differs"
_DECIDES = "differs, and changes the mathematics"
_ONE_SIDED = "not on every side"


def make_table(result: Result) -> Table | None:
    """Return the table of effective settings and versions, None if none were read back.

    Each contender has a column.
    """
    contenders = result.contenders
    settings = [contender.settings for contender in contenders]
    if not any(settings):
        return None
    rows: list[tuple[str, ...]] = [("backend", *(contender.backend for contender in contenders), "")]
    rows += [("requested tuning", *(contender.tuning for contender in contenders), "")]
    for name in _keys(settings):
        rows += _rows(name, [values.get(name, _MISSING) for values in settings], decides=name in SHARED)
    variables = [contender.variables for contender in contenders]
    for name in _keys(variables):
        rows += _rows(f"variable {name}", [values.get(name, _MISSING) for values in variables], decides=False)
    versions = [contender.versions for contender in contenders]
    rows += [
        (f"version of {name}", *(_text(values.get(name, _MISSING)) for values in versions), "")
        for name in _keys(versions)
    ]
    caption = (
        "Effective settings, most of them read back from the framework after the model was built. A dash stands for "
        "a switch that a side does not have. Variables are the environment variables that samestep set for a "
        "contender's processes, merged with the user's."
    )
    return Table(
        "settings",
        caption,
        ("setting", *(contender.name for contender in contenders), "remark"),
        rows,
        f"Setting: {describe_setting(result)}.",
        marked=frozenset(index for index, row in enumerate(rows) if row[-1] in (_DIFFERS, _DECIDES)),
        prose=True,
    )


class _Missing:
    """A setting that a side does not have. It equals no value, not even None."""


_MISSING = _Missing()
_Value = Json | _Missing


def _keys(mappings: Sequence[Mapping[str, Json]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _rows(name: str, values: Sequence[_Value], *, decides: bool) -> Iterator[tuple[str, ...]]:
    """Yield the rows of one setting. A setting with entries has a summary, and a row for each difference."""
    tables = [value for value in values if isinstance(value, Mapping)]
    if len(tables) < len(values):
        yield (name, *map(_text, values), _remark(values, decides))
        return
    yield (name, *map(_summarise, tables), _remark(tables, decides))
    for key in _keys(tables):
        entries = [table.get(key, _MISSING) for table in tables]
        if remark := _remark(entries, decides):
            yield (f"{name} of {key}", *map(_text, entries), remark)


def _remark(values: Sequence[_Value], decides: bool) -> str:
    if all(are_alike(value, values[0]) for value in values):
        return ""
    if decides:
        return _DECIDES
    return _ONE_SIDED if any(value is _MISSING for value in values) else _DIFFERS


def _summarise(values: Mapping[str, Json]) -> str:
    counts = Counter(_text(value) for value in values.values())
    return ", ".join(f"{text} ({count} of {len(values)})" for text, count in counts.items()) or "none"


def _text(value: _Value) -> str:
    if isinstance(value, _Missing):
        return DASH
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
