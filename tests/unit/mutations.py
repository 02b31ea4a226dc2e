"""Results as they might come from elsewhere: hypothesis changes some values of a valid one, of their type or not."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies

HOSTILE_TEXTS = (
    "",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "a | b\n| --- |\n# [x](javascript:y) `z` *w* www.example.org",
    r"\input{/etc/passwd} % $x^2$ \end{tabular} & # _ ~ ^",
    "=1+1",
    "$\\frac{1$",
    "\x00\x1b[31m\u202e\ud800\ufffe",
    "\N{CJK UNIFIED IDEOGRAPH-4E2D}\N{SNOWMAN} é µ",
    "x" * 500,
    "<!-- -->]]>",
    "[2em]",
    "*",
)
NUMBERS = (0, 1, -1, 2, 7.0, 5e-324, 1e-300, 1e-12, 1e-3, 0.5, 1.0000001, 1e9, 1e30, 1e300, 1.7e308, 2**53, 2**62)
OTHERS = (None, True, False, [], {}, [[]], {"a": {"b": [None, 1.5, "x"]}}, float("nan"), float("inf"), 10**30)


def changed(result: dict[str, Any]) -> strategies.SearchStrategy[dict[str, Any]]:
    """Return results that differ from a valid one in one to five places."""
    return strategies.integers(1, 5).flatmap(lambda count: _changed(result, count))


@strategies.composite
def _changed(draw: strategies.DrawFn, result: dict[str, Any], count: int) -> dict[str, Any]:
    found = copy.deepcopy(result)
    for _ in range(count):
        places = list(_places(found))
        holder, key = places[draw(strategies.integers(0, len(places) - 1))]
        _change(draw, holder, key)
    return found


def damaged(result: dict[str, Any]) -> strategies.SearchStrategy[bytes]:
    """Return the bytes of a valid result's file, cut off, or with bytes replaced."""
    data = json.dumps(result, indent=1).encode()
    places = strategies.integers(0, len(data) - 1)
    cut = places.map(lambda place: data[:place])
    replaced = strategies.lists(strategies.tuples(places, strategies.integers(0, 255)), min_size=1, max_size=4)
    return cut | replaced.map(lambda changes: _replaced(data, changes))


def _replaced(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    found = bytearray(data)
    for place, byte in changes:
        found[place] = byte
    return bytes(found)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        # Every tensor and sample is like the next: one in a list stands for all, or no other place would be hit.
        if not (isinstance(value, list) and isinstance(key, int) and key > 2):
            yield from _places(item)


def _change(draw: strategies.DrawFn, holder: Any, key: Any) -> None:
    value, kind = holder[key], draw(strategies.sampled_from(("like", "like", "like", "other", "gone")))
    if kind == "gone":
        del holder[key]
    elif kind == "other":
        holder[key] = copy.deepcopy(draw(strategies.sampled_from((*HOSTILE_TEXTS, *NUMBERS, *OTHERS))))
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, (int, float)):
        holder[key] = draw(strategies.sampled_from(NUMBERS))
    elif isinstance(value, str):
        holder[key] = draw(strategies.sampled_from(HOSTILE_TEXTS))
    elif isinstance(value, list):
        holder[key] = copy.deepcopy(draw(strategies.sampled_from(([], value[:1], value[::-1], value * 2))))
    elif isinstance(value, dict):
        text = draw(strategies.sampled_from(HOSTILE_TEXTS))
        holder[key] = {**value, text: copy.deepcopy(draw(strategies.sampled_from((*OTHERS, *NUMBERS, text))))}
