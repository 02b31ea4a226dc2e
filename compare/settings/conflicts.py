"""Which knobs need or exclude one another, in which framework and on which device."""

from collections.abc import Collection, Mapping, Sequence

from compare.base import compiler_flags
from compare.base.interface import Refused
from compare.base.knobs import KNOBS, NOT_PARALLEL, PARALLEL, Value

_NEEDED: Mapping[str, Mapping[str, str]] = {
    "jax": {
        **dict.fromkeys((*PARALLEL["jax"], "steps-per-dispatch", "fused-optimizer", "donation"), "compile"),
        **dict.fromkeys(("rematerialisation", "exported", "pieces", "fused-batch-norm"), "compile"),
        **dict.fromkeys(("compiler-flags", "constant-weights"), "compile"),
        "concurrent-kernels": "graph-capture",
    },
    "torch": {
        **dict.fromkeys(("concurrent-kernels", "exported", "max-autotune", "fused-batch-norm"), "compile"),
        **dict.fromkeys(("compiler-flags", "constant-weights", "fused-convolutions"), "compile"),
        **dict.fromkeys(("compiled-autograd", "overlap-exchanges"), "compile"),
        "steps-per-dispatch": "graph-capture",
    },
}
"""The knob without which another one does nothing, by backend."""

_EXCLUDED: Mapping[str, Sequence[tuple[str, str]]] = {
    "jax": [
        ("exported", "constant-weights"),
        *(("pieces", name) for name in ("donation", "rematerialisation", "steps-per-dispatch", *PARALLEL["jax"])),
        *(("fused-batch-norm", name) for name in ("pieces", "rematerialisation", *PARALLEL["jax"])),
    ],
    "torch": [
        *(("exported", name) for name in ("graph-capture", "constant-weights", "fused-convolutions")),
        *(("fused-batch-norm", name) for name in ("rematerialisation", *PARALLEL["torch"])),
    ],
}
"""Knobs that cannot be on together, by backend. A step in pieces is no program that knobs of whole steps could use."""

_BETWEEN_DEVICES = ("overlap-reduction", "compiled-autograd", "overlap-exchanges")


def check(where: str, backend: str, device: str, values: Mapping[str, Value], given: Collection[str]) -> None:
    """Check that a backend's knobs go together on `cpu` or `cuda`. `given` names the knobs that the user set.

    A knob that would do nothing is refused. Otherwise a result would name what was not tried.

    Raises:
        Refused: the first conflict, with `where` in the message.
    """
    way, own = values["parallel"], PARALLEL.get(backend, ())
    if way not in (NOT_PARALLEL, *own):
        raise Refused(f"{where}: {backend} has no way {way!r}; allowed: {', '.join(own)}")
    on = {name for name, value in values.items() if value != KNOBS[name].default} | {way}
    on |= {name for name in given if name not in values}  # always on
    for knob in KNOBS.values():
        if knob.name in on and knob.required_device not in (None, device):
            raise Refused(f"{where}: {knob.name} needs --device {knob.required_device}")
    words = compiler_flags.list_words(backend, device)
    if (flags := values.get("compiler-flags", words[0])) not in words:
        raise Refused(f"{where}: {backend} has no compiler-flags={flags} on {device}; allowed: {', '.join(words)}")
    if device == "cpu" and backend == "jax" and "overlap-reduction" in on:
        raise Refused(f"{where}: overlap-reduction needs --device cuda in jax")
    for name, needed in _NEEDED.get(backend, {}).items():
        if name in on and needed not in on:
            raise Refused(f"{where}: {name} needs {needed} in {backend}")
    for name, other in _EXCLUDED.get(backend, ()):
        if name in on and other in on:
            raise Refused(f"{where}: {name} excludes {other} in {backend}; allowed: one of them")
    if way == NOT_PARALLEL:
        for name in _BETWEEN_DEVICES:
            if name in on:
                raise Refused(f"{where}: {name} needs {' or '.join(own)} in {backend}")
        return
    if values["input"] == "stream":
        raise Refused(f"{where}: {way} excludes input=stream; allowed: input=resident")
    if device == "cpu" and way == "pmap" and "rematerialisation" in on:
        raise Refused(f"{where}: pmap excludes rematerialisation on a CPU, where XLA would undo it; allowed: sharded")
    if backend == "torch" and "compile" not in on and "overlap-reduction" not in on:
        raise Refused(f"{where}: overlap-reduction=off needs compile in torch; op by op, ddp overlaps")


def find_concurrency_knob(backend: str) -> str:
    """Return the knob without which a backend runs no kernels together."""
    return "compile" if backend == "torch" else "graph-capture"
