"""Resources of the machine that two contenders must share for their times to be comparable."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from compare.agreement.gates import RESOURCES, Gate

NAMES = {
    "threads": "threads",
    "usable-cores": "usable_cores",
    "instruction-set": "instruction_set",
    "compiler-effort": "compiler_effort",
    "cpu-quota": "cpu_quota",
}
"""Every resource: its name for users, and its key in a contender's settings."""

_OF_ONE_DEVICE = ("threads", "usable_cores")


def judge(baseline: Mapping[str, Any], contender: Mapping[str, Any], accepted: Collection[str] = ()) -> Gate:
    """Judge that both sides have the same resources, apart from `accepted` ones. The value counts those that differ."""
    names = list(_find_unequal(baseline, contender, accepted))
    return RESOURCES.judge(float(len(names)), names[0] if names else None)


def describe_differences(
    baseline: Mapping[str, Any],
    contender: Mapping[str, Any],
    accepted: Collection[str] = (),
    causes: Mapping[str, Collection[str]] | None = None,
) -> str | None:
    """Return in words which resources differ, None if none do. `causes` are the likely variables by key."""
    texts: list[str] = []
    for name in _find_unequal(baseline, contender, accepted):
        key = NAMES[name]
        because = ", ".join((causes or {}).get(key, ()))
        texts.append(f"{name} {baseline[key]} against {contender[key]}{because and f' (see {because})'}")
    if not texts:
        return None
    return f"unequal resources: {'; '.join(texts)}; make them equal, or accept this with --unequal"


def _find_unequal(
    baseline: Mapping[str, Any], contender: Mapping[str, Any], accepted: Collection[str]
) -> Iterator[str]:
    """Yield the resources that both sides report and that differ.

    On several devices, processes share the cores, so their threads and cores are not comparable.
    """
    alone = all(side.get("devices", 1) == 1 for side in (baseline, contender))
    for name, key in NAMES.items():
        is_known = key in baseline and key in contender and (alone or key not in _OF_ONE_DEVICE)
        if is_known and name not in accepted and baseline[key] != contender[key]:
            yield name
