"""Whether a plan's batches can be split over its devices and machines as its contenders say."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compare.base import knobs, workloads
from compare.base.interface import BATCH_NORMS, Refused

if TYPE_CHECKING:
    from compare.settings.plan import Plan

MOST_CPU_DEVICES = 64


def check(plan: "Plan") -> None:
    """Check every contender's knobs, and that what is split over devices can be and is compared with its like.

    Raises:
        Refused: naming what was asked for and what is allowed.
    """
    ways = {contender.name: plan.knobs(contender)["parallel"] for contender in plan.contenders}
    several, count = [name for name, way in ways.items() if way != knobs.NOT_PARALLEL], plan.devices
    if plan.workload.model.family == workloads.PAIR:
        _check_own(several, count, plan.cluster.count)
    check_ways(ways, count, plan.batch_norm)
    if plan.cluster.count > 1 and (not several or count % plan.cluster.count):
        raise Refused(
            f"--devices {count} on {plan.cluster.count} machines is not allowed; allowed: equally many on each, and a "
            f"contender that uses them (+ddp, +sharded or +pmap in its tuning), such as --devices {plan.cluster.count}"
        )
    if not several:
        return
    _check_visible(plan)
    check_batch(plan.batch_size, count)
    check_step(ways, plan.accumulate)


def check_batch(batch_size: int, devices: int) -> None:
    """Check that a batch has equal parts.

    Raises:
        Refused: it has none.
    """
    if batch_size % devices:
        raise Refused(f"--batch-size {batch_size} with --devices {devices} is not allowed; allowed: equal parts")


def check_step(ways: Mapping[str, Any], accumulate: int) -> None:
    """Check that contenders with a way train what is split over devices: whole batches.

    Raises:
        Refused: naming the first contender that does not.
    """
    name = next((name for name, way in ways.items() if way != knobs.NOT_PARALLEL), None)
    if name is not None and accumulate > 1:
        raise Refused(f"--accumulate {accumulate} with {name} is not allowed; allowed: 1")


def check_ways(ways: Mapping[str, Any], devices: int, batch_norm: str) -> None:
    """Check that several devices are used by one contender at least, given each one's value of the knob `parallel`.

    Raises:
        Refused: with how a contender says that it uses them; or batch norm is none, or one that a contender has not.
    """
    if batch_norm not in BATCH_NORMS:
        raise Refused(f"--batch-norm {batch_norm} is not allowed; allowed: {', '.join(BATCH_NORMS)}")
    if devices > 1 and all(way == knobs.NOT_PARALLEL for way in ways.values()):
        raise Refused(
            f"--devices {devices}: no contender says how it uses several; allowed: --parallel WAY, or +WAY in a "
            f"contender's tuning, with WAY {', '.join(knobs.PARALLEL['jax'])} for jax, ddp for torch"
        )
    if batch_norm == "local":
        _check_local(ways, devices)


def _check_own(several: Sequence[str], devices: int, machines: int) -> None:
    """Refuse what a user's own models do not do: train on more than one device, or as contenders that could."""
    if devices > 1 or machines > 1:
        where = f" on {machines} machines" if machines > 1 else ""
        raise Refused(
            f"--devices {devices}{where}: models of your own train on one device; allowed: --devices 1, no launcher"
        )
    if several:
        raise Refused(f"{several[0]}: models of your own train on one device; allowed: tunings without a way")


def _check_visible(plan: "Plan") -> None:
    """Check that every machine has its part of the devices."""
    machines, cuda = plan.cluster.count, plan.device == "cuda"
    each, kind = plan.devices // machines, "GPUs are visible" if cuda else "parts of this CPU can be used"
    where = f", {each} on each of {machines} machines" if machines > 1 else ""
    for place, gpus in plan.cluster.gpus().items():
        if each > (most := gpus if cuda else MOST_CPU_DEVICES):
            raise Refused(f"--devices {plan.devices}{where} is not allowed: {most} {kind}{place}")
        if cuda and plan.rotation > gpus:
            raise Refused(f"rounds that go around on {plan.rotation} GPUs are not allowed: {gpus} {kind}{place}")


def _check_local(ways: Mapping[str, Any], devices: int) -> None:
    """Refuse contenders whose batch norm is not local: they compute something else than those whose is.

    On one device the two are the same; it is left to contenders that could use several (`samestep scale`).
    """
    if all(way == knobs.NOT_PARALLEL for way in ways.values()):
        raise Refused(
            "--batch-norm local: every contender trains on one device, whose batch norm is that of the whole batch; "
            "allowed: --batch-norm sync, or --devices N with contenders that use them (+ddp or +pmap)"
        )
    if devices == 1:
        return
    for name, way in ways.items():
        if way in (knobs.NOT_PARALLEL, "sharded"):
            whole = "a program over the whole batch" if way == "sharded" else "one device"
            raise Refused(
                f"--batch-norm local: {name} is {whole}, whose batch norm is that of the whole batch: a different "
                "computation; allowed: --batch-norm sync, or only contenders with pmap or ddp"
            )
