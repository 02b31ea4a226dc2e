"""Name the code in the result of a user's own pair, and prepare to run it again.

Anybody may have written the file. Its code is imported only with the user's consent, and only in children. Nothing is
trained unless the code has the stored hash, or the user accepts another one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from compare.base import descriptions
from compare.base.interface import Refused
from compare.base.typed_json import Json
from compare.base.workloads import PAIR, Workload
from compare.results.model import SELF, PairSpec, Result
from compare.settings import pair_spec
from compare.settings.pair_spec import BACKENDS, Request

TRUST, CHANGED = "--trust-code", "--changed-code"


def names_code(stored: Result) -> bool:
    """Tell whether the result is of a user's own models, so that its file names code."""
    return stored.spec.model.get("family") == PAIR


def describe(stored: Result) -> list[str]:
    """Return the factory of each side, with the SHA-256 of its source.

    Raises:
        Refused: the file does not say it.
    """
    factories = {backend: stored.spec.model.get(backend) for backend in _list_sides(stored)}
    hashes = list_source_hashes(stored)
    if not all(isinstance(factory, str) for factory in factories.values()):
        raise Refused("spec.model: does not name two factories; allowed: jax and torch, each as text")
    losses = cast("Mapping[str, Json]", stored.spec.model.get("losses", {}))
    named = {backend: f", loss {losses[backend]}" if backend in losses else "" for backend in BACKENDS}
    return [
        f"{backend}: {factory}{named[backend]} (source SHA-256 {hashes[backend]})"
        for backend, factory in factories.items()
    ]


def _list_sides(stored: Result) -> list[str]:
    """Return the backends of the models: both, or one for a model that was compared with itself."""
    named = [backend for backend in BACKENDS if backend in stored.spec.model]
    return named if stored.agreement.kind == SELF and named else list(BACKENDS)


def list_source_hashes(stored: Result) -> dict[str, str]:
    """Return by backend the SHA-256 of the source that was run.

    Raises:
        Refused: the file does not say it of both sides.
    """
    sides = _pair(stored).sides
    needed = _list_sides(stored)
    if missing := next((backend for backend in needed if backend not in sides), None):
        raise Refused(f"spec.pair.sides: has no hash of the {missing} model's source; allowed: one for each side")
    return {backend: sides[backend].source_sha256 for backend in needed}


def check_trust(stored: Result, *, trusted: bool, changed: bool) -> None:
    """Check that the user agrees to import the code that the file names.

    Args:
        stored: a valid result.
        trusted: whether `--trust-code` was given.
        changed: whether `--changed-code` was given.

    Raises:
        Refused: the user did not agree, or gave an option although the file names no code.
    """
    if not names_code(stored):
        if option := TRUST if trusted else CHANGED if changed else None:
            raise Refused(f"{option}: the result is of the workload {stored.spec.workload} and names no code")
    elif not trusted:
        raise Refused(
            "the result is of a user's own models, and to repeat it samestep must import this code: "
            f"{'; '.join(describe(stored))}; allowed: {TRUST}, if you would run it yourself"
        )


def build_workload(stored: Result) -> Workload:
    """Return the pair that the file describes, without importing anything.

    Raises:
        Refused: the file describes no valid pair.
    """
    spec, lines = stored.spec, describe(stored)
    model = spec.model
    arguments = cast("Mapping[str, Mapping[str, Json]]", _check_kind(model, "arguments", Mapping))
    try:
        workload = pair_spec.make_workload(
            *(str(model[side]) if side in _list_sides(stored) else None for side in BACKENDS),
            image=(1, 1, 1) if model.get("inputs") else spec.image,
            classes=spec.classes,
            name=spec.workload,
            arguments={f"{side}.{key}": value for side in BACKENDS for key, value in arguments.get(side, {}).items()},
            loss=f"cross-entropy,label_smoothing={spec.label_smoothing}",
            allow=cast("list[str]", _check_kind(model, "allow", list)),
            batch_size=spec.batch_size,
            epochs=spec.epochs,
        )
        whole = descriptions.to_json(workload)
        whole["optimizer"] |= spec.optimizer
        whole["model"] |= {"image": spec.image, "inputs": model.get("inputs", ())}
        whole["model"]["arguments"] |= {"losses": model["losses"]} if "losses" in model else {}
        whole["task"] = model.get("task")
        described = descriptions.from_json(whole)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"spec: describes no pair ({'; '.join(lines)}): {error}") from error
    return replace(workload, optimizer=described.optimizer, model=described.model, task=described.task)


def build_request(stored: Result, *, changed: bool) -> Request:
    """Return the request to match the models as before, from the same source unless `changed` accepts another."""
    pair = _pair(stored)
    return Request(pair.map, pair.weights_from, None if changed else list_source_hashes(stored))


def _pair(stored: Result) -> PairSpec:
    if stored.spec.pair is None:
        raise Refused("spec: has no pair; allowed: how the two models were matched")
    return stored.spec.pair


def _check_kind(model: Mapping[str, Json], key: str, kind: type[Any]) -> Json:
    if not isinstance(model.get(key), kind):
        raise Refused(f"spec.model.{key}: allowed: {'an object' if kind is Mapping else 'a list'}")
    return model[key]
