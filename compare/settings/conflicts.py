"""Which knobs need or exclude one another, in which framework and on which device."""

from collections.abc import Collection, Mapping

from compare.base.interface import Refused
from compare.base.knobs import KNOBS, NOT_PARALLEL, PARALLEL, Value


def check(where: str, backend: str, device: str, values: Mapping[str, Value], given: Collection[str]) -> None:
    """Check that a backend's knobs go together on `cpu` or `cuda`. `given` names the knobs that the user set.

    Raises:
        Refused: the first conflict, with `where` in the message.
    """
    way, own = values["parallel"], PARALLEL.get(backend, ())
    if way not in (NOT_PARALLEL, *own):
        raise Refused(f"{where}: {backend} has no way {way!r}; allowed: {', '.join(own)}")
    if way in PARALLEL["jax"] and not values["compile"]:
        raise Refused(f"{where}: {way} needs compile in jax")
    if way != NOT_PARALLEL and values.get("pieces"):
        raise Refused(f"{where}: {way} excludes pieces, which are for a step on one device")
    if way != NOT_PARALLEL and values["input"] == "stream":
        raise Refused(f"{where}: {way} excludes input=stream; allowed: input=resident")
    if device == "cpu" and way == "pmap" and values.get("rematerialisation"):
        raise Refused(f"{where}: pmap excludes rematerialisation on a CPU, where XLA would undo it; allowed: sharded")
    if backend == "torch" and "overlap-reduction" in given and way == NOT_PARALLEL:
        raise Refused(f"{where}: overlap-reduction needs ddp in torch")
    if backend == "torch" and way != NOT_PARALLEL and not (values["overlap-reduction"] or values["compile"]):
        raise Refused(f"{where}: overlap-reduction=off needs compile in torch; op by op, ddp overlaps")
    if backend == "jax" and values["overlap-reduction"] and (way == NOT_PARALLEL or device == "cpu"):
        raise Refused(f"{where}: overlap-reduction needs --device cuda and pmap or sharded in jax")
    for name in ("compiled-autograd", "overlap-exchanges"):
        if values.get(name) and (way == NOT_PARALLEL or not values["compile"]):
            raise Refused(f"{where}: {name} needs {'compile and ddp' if backend == 'torch' else 'pmap or sharded'}")
    if backend == "jax" and values["overlap-exchanges"] and values["rematerialisation"]:
        raise Refused(f"{where}: overlap-exchanges excludes rematerialisation in jax")
    if backend == "jax" and values["overlap-exchanges"] and values["concurrent-kernels"]:
        raise Refused(f"{where}: overlap-exchanges excludes concurrent-kernels in jax, which are of captured steps")
    if values.get("compiled-autograd") and not values["overlap-reduction"]:
        raise Refused(f"{where}: compiled-autograd excludes overlap-reduction=off: it reduces in the backward pass")
    for knob in KNOBS.values():
        if values.get(knob.name) and knob.required_device not in (None, device):
            raise Refused(f"{where}: {knob.name} needs --device {knob.required_device}")
    if values.get("concurrent-kernels") and not values.get(find_concurrency_knob(backend)):
        raise Refused(f"{where}: concurrent-kernels needs {find_concurrency_knob(backend)} in {backend}")
    if values.get("max-autotune") and not values.get("compile"):
        raise Refused(f"{where}: max-autotune needs compile")
    several = values.get("steps-per-dispatch", 1) != 1
    if backend == "torch" and several and not values.get("graph-capture"):
        raise Refused(f"{where}: steps-per-dispatch above 1 needs graph-capture (and --device cuda) in torch")
    if backend == "jax" and several and not values.get("compile"):
        raise Refused(f"{where}: steps-per-dispatch above 1 needs compile in jax")
    if backend == "jax" and "fused-optimizer" in given and not values.get("compile"):
        raise Refused(f"{where}: fused-optimizer needs compile in jax")
    if backend == "jax" and values.get("donation") and not values.get("compile"):
        raise Refused(f"{where}: donation needs compile in jax")
    if backend == "jax" and values.get("rematerialisation") and not values.get("compile"):
        raise Refused(f"{where}: rematerialisation needs compile in jax: op by op, a step keeps what it computed")
    if values.get("exported") and not values.get("compile"):
        raise Refused(f"{where}: exported needs compile")
    if values.get("exported") and values.get("graph-capture") and backend == "torch":
        raise Refused(f"{where}: exported excludes graph-capture in torch; allowed: one of them")
    if values.get("pieces") and not values.get("compile"):
        raise Refused(f"{where}: pieces needs compile")
    if values.get("pieces") and values.get("rematerialisation"):
        raise Refused(f"{where}: pieces excludes rematerialisation: a step in pieces keeps every layer's output")
    if values.get("pieces") and (several or values.get("donation")):
        raise Refused(f"{where}: pieces excludes donation and steps-per-dispatch above 1, which are for a whole step")


def find_concurrency_knob(backend: str) -> str:
    """Return the knob without which a backend runs no kernels together."""
    return "compile" if backend == "torch" else "graph-capture"
