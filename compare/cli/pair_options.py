"""The options by which a user names a pair of models, shared by every command that takes a workload."""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from compare.base import untrusted
from compare.base.interface import Refused
from compare.base.workloads import Workload
from compare.cli import options
from compare.settings import pair_spec
from compare.settings.pair_spec import BACKENDS, Request

_T = TypeVar("_T")


def _option(help: str, metavar: str, *names: str) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


_WORKLOAD = Annotated[str | None, options.WORKLOAD]
_FACTORY = "pkg.module:NAME or file.py:NAME"
_OPTIONS: dict[str, Any] = {
    "jax": Annotated[str | None, _option("Factory of your flax model.", _FACTORY)],
    "torch": Annotated[str | None, _option("Factory of your torch model.", _FACTORY)],
    "image": Annotated[str | None, _option("Its images.", "HxWxC", "--input")],
    "classes": Annotated[int | None, _option("Its outputs.", "N")],
    "model_args": Annotated[
        list[str] | None, _option("Arguments of both factories; jax.KEY or torch.KEY: of one.", "KEY=VALUE ...")
    ],
    "optimizer": Annotated[str | None, _option("sgd, adam or adamw.", "NAME[,KEY=VALUE]")],
    "loss": Annotated[str | None, _option("cross-entropy.", "NAME[,label_smoothing=VALUE]")],
    "weights_map": Annotated[Path | None, _option("Torch's names to flax's, as `samestep map` prints them.", "FILE")],
    "weights_from": Annotated[
        str | None, _option("Whose initial weights training starts from. Default: torch.", "torch|jax")
    ],
    "allow": Annotated[list[str] | None, _option("A difference to accept: running-variance.", "NAME")],
}
_OF_TRAINING = ("optimizer", "loss", "weights_from", "allow")


def taken(command: Callable[..., _T]) -> Callable[..., _T]:
    """Give a command the options of a pair; it takes `workload`, a `Workload` or a name, and `request`.

    Neither `request` nor `cluster`, the machines of a run, is an option.

    Without any of them `workload` is the name that was given, or the default; with some of them it is the pair. A
    command whose default is None, `map`, trains nothing: it has no option --workload and none of training.
    """
    signature = inspect.signature(command)
    workload = signature.parameters["workload"].default
    kept = [
        each.replace(annotation=_WORKLOAD, default=None) if each.name == "workload" else each
        for each in signature.parameters.values()
        if each.name not in ("request", "cluster") and (each.name != "workload" or workload is not None)
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
        if workload is not None or name not in _OF_TRAINING
    ]

    @functools.wraps(command)
    def wrapped(**given: Any) -> _T:
        pair = {name: given.pop(name, None) for name in _OPTIONS}
        if written := [_flag(name) for name, value in pair.items() if value is not None and value != []]:
            if given.get("workload") is not None:
                raise Refused("--workload and a pair of your own (--jax, --torch) exclude each other")
            given["workload"], given["request"] = _pair(written, **pair)
        return command(**{name: value for name, value in given.items() if name != "workload" or value is not None})

    parameters = kept + added
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] -- typer reads it
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return wrapped


def _flag(name: str) -> str:
    return "--input" if name == "image" else f"--{name.replace('_', '-')}"


def _pair(
    given: Sequence[str],
    jax: str | None,
    torch: str | None,
    image: str | None,
    classes: int | None,
    model_args: list[str] | None,
    optimizer: str | None,
    loss: str | None,
    weights_map: Path | None,
    weights_from: str | None,
    allow: list[str] | None,
) -> tuple[Workload, Request]:
    if jax is None or torch is None or image is None or classes is None:
        needed = {"--jax": jax, "--torch": torch, "--input": image, "--classes": classes}
        missing = [name for name, value in needed.items() if value is None]
        raise Refused(f"{' '.join(given)}: a pair of your own needs {', '.join(missing)} as well")
    if weights_from not in (None, *BACKENDS):
        raise Refused(f"--weights-from {weights_from}: allowed: {', '.join(BACKENDS)}")
    workload = pair_spec.workload(
        jax,
        torch,
        image=image,
        classes=classes,
        arguments=pair_spec.assignments(model_args or [], "--model-args "),
        optimizer=optimizer or "sgd",
        loss=loss or "cross-entropy",
        allow=allow or [],
    )
    return workload, Request(weights_map and _map(weights_map), weights_from or "torch")


def _map(path: Path) -> dict[str, str]:
    try:
        data = untrusted.read(path, untrusted.SIZE_LIMIT, "a JSON file")
        untrusted.check_size(data)
        found = untrusted.parse(data)
    except Refused as error:
        raise Refused(f"--weights-map {path}: {error}") from None
    if not isinstance(found, dict):
        raise Refused(f"--weights-map {path}: allowed: one JSON object, torch's names to flax's")
    values = cast("dict[str, Any]", found)
    if wrong := next((name for name, value in values.items() if not isinstance(value, str)), None):
        raise Refused(f"--weights-map {path}: {wrong!r} is not given as text; allowed: a name of flax's")
    return values
