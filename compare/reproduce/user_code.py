"""The result of a user's own pair: which code its file names, and what it takes to run that code again.

Anybody may have written the file. Its code is imported only where the user says so, in children only, and nothing is
trained unless that code is the one whose hash was stored, or the user accepts that it is not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from compare.base import descriptions
from compare.base.interface import Refused
from compare.base.workloads import PAIR, Workload
from compare.settings import pair_spec
from compare.settings.pair_spec import BACKENDS, Request

Object = Mapping[str, Any]

TRUST, CHANGED = "--trust-code", "--changed-code"


def is_named(stored: Object) -> bool:
    """Whether the result is of a user's own models, so that its file names code."""
    return stored["spec"].get("model", {}).get("family") == PAIR


def lines(stored: Object) -> list[str]:
    """Return for each side which factory the file names, and the SHA-256 of the source that was run.

    Raises:
        Refused: the file does not say it.
    """
    spec = stored["spec"]
    named = {backend: spec["model"].get(backend) for backend in BACKENDS}
    hashes = sources(stored)
    if not all(isinstance(each, str) for each in named.values()):
        raise Refused("spec.model: names no two factories; allowed: jax and torch, each as text")
    return [f"{backend}: {named[backend]} (source SHA-256 {hashes[backend]})" for backend in BACKENDS]


def sources(stored: Object) -> dict[str, str]:
    """Return by backend the SHA-256 of the source that was run.

    Raises:
        Refused: the file does not say it of both sides.
    """
    sides = stored["spec"].get("pair", {}).get("sides", {})
    if missing := next((backend for backend in BACKENDS if backend not in sides), None):
        raise Refused(f"spec.pair.sides: does not say which source the {missing} model was made of; allowed: its hash")
    return {backend: sides[backend]["source_sha256"] for backend in BACKENDS}


def check_trust(stored: Object, *, trusted: bool, changed: bool) -> None:
    """Check that the user has said that the code which the file names may be imported.

    Args:
        stored: a valid result.
        trusted: whether `--trust-code` was given.
        changed: whether `--changed-code` was given.

    Raises:
        Refused: code that nobody has trusted, naming it; an option without any code that it could be about.
    """
    if not is_named(stored):
        if option := TRUST if trusted else CHANGED if changed else None:
            raise Refused(f"{option}: the result is of the workload {stored['spec']['workload']} and names no code")
    elif not trusted:
        raise Refused(
            "the result is of a user's own models, and to repeat it this code is imported: "
            f"{'; '.join(lines(stored))}; allowed: {TRUST}, if you would run it yourself"
        )


def workload(stored: Object) -> Workload:
    """Return the pair that the file describes, from which nothing is imported.

    Raises:
        Refused: for what no pair can be.
    """
    spec, named = stored["spec"], lines(stored)
    model = spec["model"]
    arguments = cast("Object", _of(model, "arguments", Mapping))
    try:
        made = pair_spec.make_workload(
            model["jax"],
            model["torch"],
            image=spec["image"],
            classes=spec["classes"],
            name=spec["workload"],
            arguments={f"{side}.{key}": value for side in BACKENDS for key, value in arguments.get(side, {}).items()},
            loss=f"cross-entropy,label_smoothing={spec.get('label_smoothing', 0.0)}",
            allow=cast("list[str]", _of(model, "allow", list)),
            batch_size=spec["batch_size"],
            epochs=spec["epochs"],
        )
        whole = descriptions.to_json(made)
        whole["optimizer"] |= spec["optimizer"]
        described = descriptions.from_json(whole)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"spec: describes no pair ({named[0]}; {named[1]}): {error}") from error
    return replace(made, optimizer=described.optimizer)


def request(stored: Object, *, changed: bool) -> Request:
    """Return how the models of the file are to be brought together: as they were, from the same source.

    `changed` accepts another source.
    """
    pair = stored["spec"]["pair"]
    return Request(pair["map"], pair["weights_from"], None if changed else sources(stored))


def _of(model: Object, key: str, kind: type[Any]) -> Any:
    if not isinstance(model.get(key), kind):
        raise Refused(f"spec.model.{key}: allowed: {'an object' if kind is Mapping else 'a list'}")
    return model[key]
