"""A pair of a user's own models, made into a workload."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from types import NoneType
from typing import Any

from compare.agreement.allowances import ALLOWED
from compare.base.arguments import (
    check,
    check_text_list,
    check_type,
    check_whole_number,
    reword_refusals,
)
from compare.base.interface import Refused
from compare.base.workloads import (
    LONGEST_NAME,
    PAIR,
    ModelSpec,
    OptimizerSpec,
    Workload,
)

BACKENDS = ("jax", "torch")

_OPTIMIZERS = {
    "sgd": OptimizerSpec("sgd", learning_rate=0.05, momentum=0.9),
    "adam": OptimizerSpec("adam", learning_rate=1e-3),
    "adamw": OptimizerSpec("adam", learning_rate=1e-3, weight_decay=0.01, decoupled=True),
}
_SETTABLE = {
    **dict.fromkeys(("learning_rate", "momentum", "epsilon", "weight_decay", "clip_norm"), float),
    **dict.fromkeys(("nesterov", "decay_kernels_only"), bool),
}
_BATCH = 32
FORMS = "pkg.module:factory or path/to/file.py:factory"


@dataclass(frozen=True)
class Request:
    """How to match the two models of a pair.

    Attributes:
        weights_map: torch's name of each parameter and buffer to flax's; None matches them automatically.
        weights_from: the backend whose initial weights both models use.
        sources: the SHA-256 that each side's source must have, by backend; None accepts any source.
    """

    weights_map: Mapping[str, str] | None = None
    weights_from: str = "torch"
    sources: Mapping[str, str] | None = None


def make_workload(
    jax: str,
    torch: str,
    *,
    image: str | Sequence[int],
    classes: int,
    name: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    optimizer: str | OptimizerSpec = "sgd",
    loss: str = "cross-entropy",
    allow: Sequence[str] = (),
    batch_size: int = _BATCH,
    epochs: int = 1,
) -> Workload:
    """Return the workload of a user's own pair, trained on synthetic images.

    Args:
        jax: the factory of the flax model, `pkg.module:name` or `path/to/file.py:name`.
        torch: the factory of the torch model.
        image: height, width and channels, as numbers or as `224x224x3`.
        classes: number of outputs.
        name: the workload's name. Default: torch's module and factory.
        arguments: keyword arguments of both factories; `jax.KEY` and `torch.KEY` are for one.
        optimizer: `sgd`, `adam` or `adamw`, with `,KEY=VALUE` for fields of `OptimizerSpec`.
        loss: `cross-entropy`, with `,label_smoothing=VALUE`.
        allow: names of the differences to accept (`compare.agreement.allowances.ALLOWED`).
        batch_size: images per step.
        epochs: passes over the training set, which has eight batches.

    Raises:
        Refused: for an argument of another form.
    """
    check_type("name", name, (str, NoneType), "a text")
    check_text_list("--allow", allow, f"a list of {', '.join(ALLOWED)}")
    if unknown := [difference for difference in allow if difference not in ALLOWED]:
        raise Refused(f"--allow {unknown[0]}: no such difference; allowed: {', '.join(ALLOWED)}")
    for backend, reference in (("jax", jax), ("torch", torch)):
        check_type(f"--{backend}", reference, str, FORMS)
        if not all(reference.rpartition(":")[::2]):
            raise Refused(f"--{backend} {reference}: names no factory; allowed: {FORMS}")
    check_whole_number("--classes", classes, 2)
    check_whole_number("--batch-size", batch_size, 2)
    check_whole_number("--epochs", epochs, 1)
    return Workload(
        name=_make_name(torch) if name is None else name,
        summary="a user's own pair",
        model=ModelSpec(
            PAIR,
            _parse_image(image),
            classes,
            {
                "jax": jax,
                "torch": torch,
                "arguments": _split_by_backend({} if arguments is None else arguments),
                "allow": list(allow),
            },
        ),
        optimizer=_parse_optimizer(optimizer),
        data="synthetic",
        batch_size=batch_size,
        epochs=epochs,
        label_smoothing=_parse_smoothing(loss),
    )


pair = reword_refusals(make_workload)
"""`make_workload` for Python code: messages name its arguments."""


def parse_assignments(texts: Sequence[str], option: str = "") -> dict[str, Any]:
    """Return `KEY=VALUE` texts as a mapping. A value that is no JSON stays a text.

    Messages begin with `option`.

    Raises:
        Refused: for a text of another form, or a repeated key.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Refused(f"{option}{text} is not allowed; allowed: KEY=VALUE")
        if key in values:
            raise Refused(f"{option}{text}: {key} appears twice; allowed: once")
        try:
            values[key] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except ValueError:
            values[key] = value
    return values


def _split_by_backend(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    check_type("--model-args", arguments, Mapping, "names with values, such as {'width': 16}")
    check_text_list("--model-args", list(arguments), "names that are texts")
    by_backend: dict[str, dict[str, Any]] = {backend: {} for backend in BACKENDS}
    for key, value in arguments.items():
        backend, dot, own = key.rpartition(".")
        if dot and backend not in BACKENDS:
            raise Refused(f"--model-args {key}: allowed: KEY=VALUE for both, jax.KEY=VALUE or torch.KEY=VALUE for one")
        for side in (backend,) if dot else BACKENDS:
            by_backend[side][own] = value
    return by_backend


def _parse_image(text: str | Sequence[int]) -> tuple[int, int, int]:
    if isinstance(text, str):
        parts = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
        sizes = tuple(map(int, parts.groups())) if parts else ()
    else:
        allowed = "height, width and channels, such as (224, 224, 3) or '224x224x3'"
        check_type("--input", text, Sequence, allowed)
        check(all(type(size) is int for size in text), "--input", text, allowed)
        sizes = tuple(text)
    if len(sizes) != 3 or min(sizes) < 1:
        raise Refused(f"--input {text}: allowed: HEIGHTxWIDTHxCHANNELS, for example 224x224x3")
    return sizes


def _parse_optimizer(text: str | OptimizerSpec) -> OptimizerSpec:
    if isinstance(text, OptimizerSpec):
        return text
    check_type("--optimizer", text, str, f"{', '.join(_OPTIMIZERS)}, or a compare.OptimizerSpec")
    name, *settings = text.split(",")
    if name not in _OPTIMIZERS:
        raise Refused(f"--optimizer {name}: allowed: {', '.join(_OPTIMIZERS)}, each with ,KEY=VALUE")
    values = parse_assignments(settings)
    for key, value in values.items():
        kind = _SETTABLE.get(key)
        right = isinstance(value, bool) if kind is bool else isinstance(value, int | float) and value >= 0
        if kind is None or not right or (kind is float and isinstance(value, bool)):
            wanted = "true or false" if kind is bool else "a number of 0 and more"
            allowed = f"for {key} {wanted}" if kind else ", ".join(_SETTABLE)
            raise Refused(f"--optimizer {key}={value}: not allowed; allowed: {allowed}")
    try:
        return replace(_OPTIMIZERS[name], **values)
    except ValueError as error:
        raise Refused(f"--optimizer {text}: {error}") from error


def _parse_smoothing(text: str) -> float:
    check_type("--loss", text, str, "cross-entropy, or cross-entropy,label_smoothing=VALUE")
    name, *settings = text.split(",")
    values = parse_assignments(settings)
    smoothing = values.pop("label_smoothing", 0.0)
    if name != "cross-entropy" or values or isinstance(smoothing, bool) or not isinstance(smoothing, int | float):
        raise Refused(f"--loss {text}: allowed: cross-entropy, or cross-entropy,label_smoothing=VALUE")
    if not 0 <= smoothing < 1:
        raise Refused(f"--loss {text}: a label smoothing of {smoothing} is not allowed; allowed: 0 and more, below 1")
    return float(smoothing)


def _make_name(reference: str) -> str:
    """Return a valid name for a pair, made of its factory's module and name."""
    place, _, factory = reference.rpartition(":")
    module = PurePath(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    name = re.sub(r"[^A-Za-z0-9_.:-]", "-", f"{module}:{factory}")
    return (name if name[0].isalpha() else f"pair-{name}")[:LONGEST_NAME]
