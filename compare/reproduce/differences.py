"""Find what differs from a stored run: versions, devices, variables, data, settings. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast

from compare.base import typed_json
from compare.base.typed_json import Json
from compare.results.model import Contender, Result, Spec

MOMENTARY = frozenset({"load_average", "sm_clock_mhz", "memory_clock_mhz"})
"""Keys of an environment that describe the moment, not the machine."""


@dataclass(frozen=True)
class Difference:
    """A place, for example `packages.torch`, with the stored value and the value here. None stands for nothing."""

    place: str
    stored: Json
    here: Json


def find_differences(stored: Json, here: Json, place: str = "") -> Iterator[Difference]:
    """Yield the leaves in which two JSON values differ, in the order of the stored one, then those that are new here.

    A missing key counts as null.
    """
    if isinstance(stored, Mapping) and isinstance(here, Mapping):
        a, b = cast("Mapping[str, Json]", stored), cast("Mapping[str, Json]", here)
        for key in dict.fromkeys((*a, *b)):
            if key not in MOMENTARY:
                yield from find_differences(a.get(key), b.get(key), f"{place}.{key}" if place else key)
    elif _is_list(stored) and _is_list(here):
        for index, (a, b) in enumerate(zip_longest(cast("Sequence[Json]", stored), cast("Sequence[Json]", here))):
            yield from find_differences(a, b, f"{place}[{index}]")
    elif here is None and (isinstance(stored, Mapping) or _is_list(stored)):
        yield from find_differences(stored, {} if isinstance(stored, Mapping) else [], place)
    elif stored is None and (isinstance(here, Mapping) or _is_list(here)):
        yield from find_differences({} if isinstance(here, Mapping) else [], here, place)
    elif stored != here:
        yield Difference(place, stored, here)


def find_before_run(
    stored: Result, environment: Mapping[str, Json], hashes: Mapping[str, str | None]
) -> list[Difference]:
    """Return the differences that are known before the run: environment, data and initial weights.

    Args:
        stored: the stored result.
        environment: `compare.machine.environment.describe()` here.
        hashes: `data_sha256` here and, if samestep knows the initial weights before the run, `weights_sha256`.
    """
    known = {"data_sha256": stored.spec.data_sha256, "weights_sha256": stored.spec.weights_sha256}
    stored_hashes = {name: known[name] for name in hashes}
    return [
        *find_differences(typed_json.write(stored.environment), environment),
        *find_differences(stored_hashes, hashes),
    ]


def find_after_run(stored: Result, result: Result) -> list[Difference]:
    """Return the differences between the contenders of two results: versions, effective settings, variables.

    Also the number of GPUs that rounds rotated over. For a user's own pair also its sources, its match and its initial
    weights.
    """
    rotations = [{"rotation": spec.rotation} for spec in (stored.spec, result.spec)]
    pairs = [_pair_facts(spec) for spec in (stored.spec, result.spec) if spec.pair]
    differences = list(find_differences(rotations[0], rotations[1], "spec"))
    if len(pairs) == 2:
        differences += find_differences(pairs[0], pairs[1])
    contenders = {contender.name: contender for contender in result.contenders}
    for contender in stored.contenders:
        if contender.name in contenders:
            here = _contender_facts(contenders[contender.name])
            for name, fact in _contender_facts(contender).items():
                differences += find_differences(fact, here[name], f"{contender.name}: {name}")
    return differences


def _is_list(value: Json) -> bool:
    return isinstance(value, (list, tuple))


def _pair_facts(spec: Spec) -> dict[str, Json]:
    return {"pair": typed_json.write(spec.pair), "weights_sha256": spec.weights_sha256}


def _contender_facts(contender: Contender) -> dict[str, Json]:
    return {"versions": contender.versions, "settings": contender.settings, "variables": contender.variables}
