"""What is not as it was when a stored result was made: versions, devices, variables, data, settings. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, cast

Object = Mapping[str, Any]

MOMENTARY = frozenset({"load_average", "sm_clock_mhz", "memory_clock_mhz"})
"""Keys of an environment that describe the moment, not the machine."""


_OF_A_PAIR = ("pair", "weights_sha256")


@dataclass(frozen=True)
class Difference:
    """A place, for example `packages.torch`, what was stored of it and what is here; None where there is nothing."""

    place: str
    stored: Any
    here: Any


def differing(stored: Any, here: Any, place: str = "") -> Iterator[Difference]:
    """Yield the leaves in which two JSON values differ, in the order of the stored one, then what is new here.

    A key that is missing counts as null.
    """
    if isinstance(stored, Mapping) and isinstance(here, Mapping):
        a, b = cast(Object, stored), cast(Object, here)
        for key in dict.fromkeys((*a, *b)):
            if key not in MOMENTARY:
                yield from differing(a.get(key), b.get(key), f"{place}.{key}" if place else key)
    elif isinstance(stored, list) and isinstance(here, list):
        before, now = cast("Sequence[Any]", stored), cast("Sequence[Any]", here)
        for index, (a, b) in enumerate(zip_longest(before, now)):
            yield from differing(a, b, f"{place}[{index}]")
    elif isinstance(stored, (Mapping, list)) and here is None:
        yield from differing(stored, type(cast(object, stored))(), place)
    elif isinstance(here, (Mapping, list)) and stored is None:
        yield from differing(type(cast(object, here))(), here, place)
    elif stored != here:
        yield Difference(place, stored, here)


def before_run(stored: Object, environment: Object, hashes: Mapping[str, str | None]) -> list[Difference]:
    """Return what differs before a stored run is repeated: environment, data and initial weights.

    Args:
        stored: the stored result.
        environment: `compare.machine.environment.describe()` here.
        hashes: `data_sha256` and, where they can be made before a run, `weights_sha256` of the initial weights here;
            None where they could not be made.
    """
    before = {name: stored["spec"][name] for name in hashes}
    return [*differing(stored["environment"], environment), *differing(before, hashes)]


def after_run(stored: Object, result: Object) -> list[Difference]:
    """Return in what the contenders of two results differ: versions, the settings that they really ran with, variables.

    Of a user's own pair, also in what its models were made of, how they were matched and what training started from;
    and on how many GPUs rounds went around.
    """
    around = [{"rotation": spec.get("rotation", 1)} for spec in (stored["spec"], result["spec"])]
    sides = [{key: spec.get(key) for key in _OF_A_PAIR} for spec in (stored["spec"], result["spec"]) if "pair" in spec]
    pair = list(differing(sides[0], sides[1])) if len(sides) == 2 else []
    now = {each["name"]: each for each in result["contenders"]}
    return [*differing(around[0], around[1], "spec"), *pair] + [
        difference
        for each in stored["contenders"]
        for key in ("versions", "settings", "variables")
        if each["name"] in now and key in each and key in now[each["name"]]
        for difference in differing(each[key], now[each["name"]][key], f"{each['name']}: {key}")
    ]
