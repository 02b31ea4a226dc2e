"""A pair of the user's own models, as the command line names it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from compare.base import untrusted
from compare.base.interface import Refused
from compare.base.untrusted import SHORT
from compare.base.workloads import Workload
from compare.settings import pair_spec
from compare.settings.options import COMMAND_LINE
from compare.settings.pair_spec import Request

_LONGEST_NAME = 500  # a message quotes up to four
_NEEDED = ("image",)


def make_pair(words: Mapping[str, Any]) -> tuple[Workload, Request]:
    """Return the workload of a pair, and how to match its models. `words` has the options that the user wrote.

    Raises:
        Refused: for an incomplete pair, a value that is not allowed, or a file without a map of names.
    """
    loss = words.get("loss", ())
    needed = _NEEDED if loss else (*_NEEDED, "classes")
    needed = needed if {"jax", "torch"} & words.keys() else ("jax", "torch", *needed)
    if missing := [COMMAND_LINE[name].flag for name in needed if name not in words]:
        written = " ".join(COMMAND_LINE[name].flag for name in words)
        hint = ""
        if missing == ["--classes"]:
            hint = " (the number of classes that the models tell apart)"
        elif not {"jax", "torch"} & words.keys():
            hint = "; a built-in workload takes no such option"
        raise Refused(f"{written}: a pair of your own needs {', '.join(missing)} as well{hint}")
    for name, word in words.items():
        COMMAND_LINE[name].check(word)
    workload = pair_spec.make_workload(
        words.get("jax"),
        words.get("torch"),
        image=words["image"],
        classes=words.get("classes"),
        arguments=pair_spec.parse_assignments(words.get("model_args", ()), "--model-args "),
        optimizer=words.get("optimizer", "sgd"),
        loss=loss,
        allow=words.get("allow", ()),
    )
    weights_map = words.get("weights_map")
    return workload, Request(weights_map and _read_map(weights_map), words.get("weights_from", "torch"))


def _read_map(path: Path) -> dict[str, str]:
    try:
        data = untrusted.read(path, untrusted.SIZE_LIMIT, "a JSON file")
        untrusted.check_size(data)
        content = untrusted.parse(data)
    except Refused as error:
        raise Refused(f"--weights-map {path}: {error}") from None
    if not isinstance(content, dict):
        raise Refused(f"--weights-map {path}: allowed: one JSON object, torch's names to flax's")
    names = cast("dict[str, Any]", content)
    if wrong := next((name for name, value in names.items() if not isinstance(value, str)), None):
        raise Refused(f"--weights-map {path}: {SHORT.repr(wrong)} stands for no text; allowed: a name of flax's")
    if wrong := next((name for name in (*names, *names.values()) if len(name) > _LONGEST_NAME), None):
        raise Refused(f"--weights-map {path}: {SHORT.repr(wrong)} is too long; allowed: {_LONGEST_NAME} characters")
    return names
