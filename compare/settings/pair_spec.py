"""A pair of a user's own models, made into a workload."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from types import NoneType
from typing import Any, cast

from compare.agreement.allowances import ALLOWED
from compare.base.arguments import (
    check,
    check_text_list,
    check_type,
    check_whole_number,
    is_text_list,
    reword_refusals,
)
from compare.base.interface import Refused
from compare.base.task import (
    BINARY,
    BINARY_TARGET,
    CROSS_ENTROPY,
    LABELS,
    LOSSES,
    OWN_LOSS,
    TARGETS,
    VALUES,
    Input,
    Output,
    Task,
    pack_image,
)
from compare.base.workloads import (
    LONGEST_NAME,
    PAIR,
    ModelSpec,
    OptimizerSpec,
    Workload,
)
from compare.settings import factory_source

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
_HIDDEN_CLASSES = 10
"""Classes behind synthetic inputs whose targets are no classes."""

_LOSS_NAMES = {**{name: name for name in LOSSES}, "bce": BINARY, "mean-squared-error": "mse", "mae": "l1"}
_LOSS_SETTINGS = {
    CROSS_ENTROPY: ("label_smoothing", "weight"),
    BINARY: ("weight",),
    "mse": ("weight", "target"),
    "l1": ("weight", "target"),
    "huber": ("weight", "target", "delta"),
}
_LOSSES_ALLOWED = (
    f"{', '.join(LOSSES)}, each with ,KEY=VALUE; OUTPUT=LOSS; or jax=FILE:FUNCTION and torch=FILE:FUNCTION"
)
_INPUT_ALLOWED = (
    "HEIGHTxWIDTHxCHANNELS, for example 224x224x3; NAME=SHAPE for each of several inputs and for other shapes, "
    "NAME=int:BELOW or NAME=int:BELOW:SHAPE for integers, or NAME=same:SHAPE where both frameworks take the axes in "
    "one order"
)
CODE_ROOT = "SAMESTEP_CODE_ROOT"
"""The variable that names a child the folder in which it finds the user's modules, instead of the current one."""

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
    jax: str | Callable[..., Any] | None = None,
    torch: str | Callable[..., Any] | None = None,
    *,
    image: str | Sequence[int] | Sequence[str],
    classes: int | None = None,
    name: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    optimizer: str | OptimizerSpec = "sgd",
    loss: str | Sequence[str] = CROSS_ENTROPY,
    allow: Sequence[str] = (),
    batch_size: int = _BATCH,
    epochs: int = 1,
) -> Workload:
    """Return the workload of a user's own pair, trained on synthetic images.

    Args:
        jax: the factory of the flax model, `pkg.module:name` or `path/to/file.py:name`. It may also be the function or
            class itself, for example of a notebook's cell. Its source is then written to `samestep-out/factories`,
            because each process makes a model of its own. None compares the torch model with itself, in different
            tunings.
        torch: the factory of the torch model, likewise.
        image: height, width and channels, as numbers or as `224x224x3`. Other inputs are a list of texts, such as
            `image=224x224x3` and `t=int:1000`.
        classes: number of classes. Losses without classes need none.
        name: the workload's name. Default: torch's module and factory.
        arguments: keyword arguments of both factories; `jax.KEY` and `torch.KEY` are for one.
        optimizer: `sgd`, `adam` or `adamw`, with `,KEY=VALUE` for fields of `OptimizerSpec`.
        loss: `cross-entropy`, `binary-cross-entropy`, `mse`, `l1` or `huber`, each with `,KEY=VALUE`. Several outputs
            take a list of `OUTPUT=LOSS`. Your own loss is a list of `jax=FILE:FUNCTION` and `torch=FILE:FUNCTION`.
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
    sides = {
        backend: factory_source.write_reference(backend, factory) if callable(factory) else factory
        for backend, factory in (("jax", jax), ("torch", torch))
        if factory is not None
    }
    check(bool(sides), "--jax and --torch", None, f"at least one of them, {FORMS}")
    if len(sides) == 1 and allow:
        raise Refused(f"--allow {allow[0]}: with one model there is no difference to accept; allowed: without --allow")
    for backend, reference in sides.items():
        check_type(f"--{backend}", reference, str, FORMS)
        if not all(reference.rpartition(":")[::2]):
            raise Refused(f"--{backend} {reference}: names no factory; allowed: {FORMS}")
    task, smoothing, functions = _parse_losses(loss, LABELS if classes is not None else VALUES, tuple(sides))
    inputs = _parse_inputs(image)
    if classes is None:
        needing = [output for output in task.outputs if output.target == LABELS] if task else [Output()]
        check(not needing, "--classes", classes, "the number of classes, which cross-entropy needs")
    if classes == 1:
        raise Refused("--classes 1 is not allowed; allowed: 2 and more, or --loss bce without --classes for one logit")
    check_whole_number("--classes", _HIDDEN_CLASSES if classes is None else classes, 2)
    check_whole_number("--batch-size", batch_size, 2)
    check_whole_number("--epochs", epochs, 1)
    return Workload(
        name=_make_name(sides.get("torch") or sides["jax"]) if name is None else name,
        summary="a user's own pair" if len(sides) > 1 else "a user's own model",
        model=ModelSpec(
            PAIR,
            pack_image(inputs) if inputs else _parse_image(image),
            _HIDDEN_CLASSES if classes is None else classes,
            {
                **sides,
                "arguments": _split_by_backend({} if arguments is None else arguments),
                "allow": list(allow),
                **({"losses": functions} if functions else {}),
            },
            inputs,
        ),
        optimizer=_parse_optimizer(optimizer),
        data="synthetic",
        batch_size=batch_size,
        epochs=epochs,
        label_smoothing=smoothing,
        task=task,
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


def _parse_inputs(texts: str | Sequence[int] | Sequence[str]) -> tuple[Input, ...]:
    """Return the inputs of a model that does not take one image, and nothing for one that does."""
    parts = [texts] if isinstance(texts, str) else texts
    if not is_text_list(parts) or not any("=" in str(text) for text in parts):
        return ()  # one image
    inputs = tuple(_parse_input(str(text)) for text in parts)
    names, written = [each.name for each in inputs], " ".join(map(str, parts))
    if len(set(names)) < len(names):
        raise Refused(f"--input {written}: allowed: a different name for each input, as NAME=SHAPE")
    if all(each.below is not None for each in inputs):
        raise Refused(f"--input {written}: allowed: at least one input of real values, which noise can move")
    return inputs


def _is_image(text: str) -> bool:
    return re.fullmatch(r"\d+x\d+x\d+", text) is not None


def _parse_input(text: str) -> Input:
    name, equals, rest = text.rpartition("=")
    kind, colon, detail = rest.partition(":")
    right = bool(equals) and name.isidentifier()
    if not colon:
        kind, detail = "float", "" if rest == "float" else rest
    below: int | None = None
    if kind == "int":
        limit, _, detail = detail.partition(":")
        right = right and limit.isdecimal() and 0 < int(limit) <= 2**24  # float32 rows hold these integers exactly
        below = int(limit) if right else None
    right = right and kind in ("float", "int", "same")
    right = right and (
        re.fullmatch(r"\d+(x\d+)*", detail) is not None or (not detail and (kind == "int" or rest == "float"))
    )
    shape = tuple(map(int, detail.split("x"))) if right and detail else ()
    if not right or (shape and min(shape) < 1):
        raise Refused(f"--input {text}: allowed: {_INPUT_ALLOWED}")
    return Input(name, shape, below, kind == "same")


def _parse_image(text: str | Sequence[int] | Sequence[str]) -> tuple[int, int, int]:
    if is_text_list(text) and text:
        text = str(text[-1])  # the last option counts, as for options with one value
    if isinstance(text, str):
        sizes = tuple(map(int, text.split("x"))) if _is_image(text) else ()
    else:
        allowed = "height, width and channels, such as (224, 224, 3) or '224x224x3'"
        check_type("--input", text, Sequence, allowed)
        check(all(type(size) is int for size in text), "--input", text, allowed)
        sizes = tuple(cast("Sequence[int]", text))
    if len(sizes) != 3 or min(sizes) < 1:
        raise Refused(f"--input {text}: allowed: {_INPUT_ALLOWED}")
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


def _parse_losses(
    texts: str | Sequence[str], own_target: str, sides: Sequence[str]
) -> tuple[Task | None, float, dict[str, str]]:
    """Return the task, the label smoothing without a task, and the user's own loss functions by backend."""
    texts = [texts] if isinstance(texts, str) else texts
    check_text_list("--loss", texts, _LOSSES_ALLOWED)
    outputs, functions, own = list[Output](), dict[str, str](), Output(loss=OWN_LOSS, target=own_target)
    for text in texts or (CROSS_ENTROPY,):
        head, *settings = text.split(",")
        values, (name, equals, loss) = parse_assignments(settings, "--loss "), head.partition("=")
        name, loss = (name, loss) if equals else ("", head)
        if name in BACKENDS and ":" in loss:
            functions[name] = loss
            own = _set_loss(own, values, ("target",), text)
        elif loss in _LOSS_NAMES:
            kind = _LOSS_NAMES[loss]
            target = {CROSS_ENTROPY: LABELS, BINARY: BINARY_TARGET}.get(kind, VALUES)
            outputs.append(_set_loss(Output(name, kind, target), values, _LOSS_SETTINGS[kind], text))
        else:
            raise Refused(f"--loss {text}: allowed: {_LOSSES_ALLOWED}")
    names = [output.name for output in outputs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"--loss {twice}=...: appears twice; allowed: one loss for each output")
    if functions and (outputs or set(functions) != set(sides)):
        wanted = " and ".join(f"{side}=FILE:FUNCTION" for side in sides)
        raise Refused(f"--loss of your own: allowed: {wanted}, and no other loss")
    if names.count("") and len(names) > 1:
        raise Refused(f"--loss {' '.join(texts)}: allowed: one loss, or OUTPUT=LOSS for each output")
    if functions:
        return Task((own,)), 0.0, functions
    if names == [""] and outputs[0].loss == CROSS_ENTROPY:
        return None, outputs[0].label_smoothing, {}
    return Task(tuple(outputs)), 0.0, {}


def _set_loss(output: Output, values: Mapping[str, Any], allowed: Sequence[str], text: str) -> Output:
    for key, value in values.items():
        if key not in allowed:
            raise Refused(f"--loss {text}: {key} is not allowed; allowed: {', '.join(allowed)}")
        if key == "target":
            check(value in TARGETS, f"--loss {text}: target", value, ", ".join(TARGETS))
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            least, most = (0, 1) if key == "label_smoothing" else (0, math.inf)
            right = is_number and (value > 0 or key == "label_smoothing") and least <= value < most
            what = "a label smoothing" if key == "label_smoothing" else f"a {key}"
            wanted = "0 and more, below 1" if key == "label_smoothing" else "a number above 0"
            if not right:
                raise Refused(f"--loss {text}: {what} of {value} is not allowed; allowed: {wanted}")
            value = float(value)
        output = replace(output, **{key: value})
    return output


def _make_name(reference: str) -> str:
    """Return a valid name for a pair, made of its factory's module and name."""
    place, _, factory = reference.rpartition(":")
    module = PurePath(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    name = re.sub(r"[^A-Za-z0-9_.:-]", "-", f"{module}:{factory}")
    return (name if name[0].isalpha() else f"pair-{name}")[:LONGEST_NAME]
