"""Effective settings that two contenders must share for their work to be the same and their times comparable."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from compare.agreement.gates import SETTINGS, Gate
from compare.base.interface import KnobValues

SHARED = (
    "parameter_dtype",
    "compute_dtype",
    "layer_dtypes",
    "tf32",
    "loss_scaling",
    "batch_size",
    "accumulate",
    "learning_rates",
    "batch_norm",
    "deterministic",
)

# Learning rates are rounded to float32, and several operations may each lose a unit in the last place.
_ROUNDING = 1e-5
# If one of these knobs is not in effect, the contender does not deserve its name.
_NAMED = ("compile", "rematerialisation", "constant-weights")


def find_ineffective(knobs: KnobValues, settings: Mapping[str, Any]) -> str | None:
    """Return in words which requested knobs are not in effect, None if all are."""
    names = [name for name in _NAMED if knobs.get(name) and settings.get(name) is False]
    return f"{', '.join(names)} asked for and not in effect" if names else None


def judge(baseline: Mapping[str, Any], contender: Mapping[str, Any]) -> Gate:
    """Judge that no setting that decides the mathematics differs. The value counts those that do."""
    names = [name for name in SHARED if not are_alike(baseline.get(name), contender.get(name))]
    return SETTINGS.judge(float(len(names)), names[0] if names else None)


def are_alike(a: Any, b: Any) -> bool:
    """Return whether two settings are the same. Floating-point numbers may differ by float32 rounding."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        first, second = cast("Mapping[str, Any]", a), cast("Mapping[str, Any]", b)
        return first.keys() == second.keys() and all(are_alike(first[key], second[key]) for key in first)
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_ROUNDING)
    return bool(a == b)


def describe_differences(baseline: Mapping[str, Any], contender: Mapping[str, Any]) -> str | None:
    """Return in words how settings that decide the mathematics differ, None if they do not."""
    differing = [text for name in SHARED for text in _differences(name, baseline.get(name), contender.get(name))]
    return f"unequal effective settings: {', '.join(differing)}" if differing else None


def list_remarks(baseline: Mapping[str, Any], contender: Mapping[str, Any]) -> Iterator[str]:
    """Yield what slows a side down, and where one rounds and the other does not.

    They may round between fused operations, within sums, or what devices add up.
    """
    sides = {"baseline": baseline, "contender": contender}
    allowed = [side for side, each in sides.items() if each.get("excess_precision")]
    if len(allowed) == 1:
        keeps = "may keep float32 between fused operations (excess precision), the other rounds"
        yield f"the {allowed[0]}'s compiler {keeps}"
    reduced = {side: each.get("reduction_dtype") for side, each in sides.items()}
    if None not in reduced.values() and len(set(reduced.values())) > 1:
        told = ", ".join(f"{dtype} ({side})" for side, dtype in reduced.items())
        yield f"gradients are added up over devices in {told}"
    for side, each in sides.items():
        if sums := each.get("widened_sums"):
            yield (
                f"the {side} takes sums of up to {max(sums.values()):,} {each.get('compute_dtype')} values in float32 "
                f"({_name_layers(sums)}), as torch does. By itself XLA on a CPU rounds after every addition and loses "
                "much of such a sum. In a program of your own, leave these layers in float32, or train on a GPU"
            )
        if each.get("debugging"):
            yield f"the {side} trains with {', '.join(each['debugging'])} on, which slows it down"


def _name_layers(names: Iterable[str]) -> str:
    """Return the first name and how many more there are. The name "" stands for the functions between layers."""
    first, *others = (name or "functions between layers" for name in names)
    return f"{first} and {len(others)} more" if others else first


def _differences(name: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        first, second = cast("Mapping[str, Any]", a), cast("Mapping[str, Any]", b)
        places = dict[str, list[str]]()
        for key in [*first, *(key for key in second if key not in first)]:
            for text in _differences("", first.get(key), second.get(key)):
                places.setdefault(text, []).append(key)
        for text, keys in places.items():
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            yield f"{name} of {keys[0]}{more}{text}"
    elif not are_alike(a, b):
        yield f"{name} is {a} against {b}"
