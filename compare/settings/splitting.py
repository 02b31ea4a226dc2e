"""Check that a plan's batches can be split over its devices and machines as its contenders say."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compare.base import knobs, workloads
from compare.base.interface import Refused

if TYPE_CHECKING:
    from compare.settings.plan import Plan

MOST_CPU_DEVICES = 64


def check(plan: "Plan") -> None:
    """Check that contenders can split batches as their knobs say, and that their batch norms are comparable.

    Raises:
        Refused: with the request and what is allowed.
    """
    ways = {contender.name: plan.knobs(contender)["parallel"] for contender in plan.contenders}
    several, count = [name for name, way in ways.items() if way != knobs.NOT_PARALLEL], plan.devices
    if plan.workload.model.family == workloads.PAIR:
        _check_own_models({name: ways[name] for name in several}, count, plan.cluster.count)
    check_ways(ways, count, plan.batch_norm)
    if plan.cluster.count > 1 and (not several or count % plan.cluster.count):
        raise Refused(
            f"--devices {count} on {plan.cluster.count} machines is not allowed; allowed: equally many on each, and a "
            f"contender that uses them (+ddp, +sharded or +pmap in its tuning), such as --devices {plan.cluster.count}"
        )
    if not several:
        return
    _check_visible_devices(plan)
    check_batch(plan.batch_size, count)
    check_step(ways, plan.accumulate)


def check_batch(batch_size: int, devices: int) -> None:
    """Check that devices can share a batch equally.

    Raises:
        Refused: they cannot.
    """
    if batch_size % devices:
        raise Refused(
            f"--batch-size {batch_size} with --devices {devices} is not allowed; allowed: a multiple of {devices}"
        )


def check_step(ways: Mapping[str, Any], accumulate: int) -> None:
    """Check that contenders on several devices train whole batches, without micro-batches.

    Raises:
        Refused: with the name of the first contender that does not.
    """
    name = next((name for name, way in ways.items() if way != knobs.NOT_PARALLEL), None)
    if name is not None and accumulate > 1:
        raise Refused(f"--accumulate {accumulate} with {name} is not allowed; allowed: 1")


def check_ways(ways: Mapping[str, Any], devices: int, batch_norm: str) -> None:
    """Check that at least one contender uses several devices. `ways` has each contender's knob `parallel`.

    Raises:
        Refused: no contender uses them, or a contender does not have this batch norm.
    """
    if devices > 1 and all(way == knobs.NOT_PARALLEL for way in ways.values()):
        raise Refused(
            f"--devices {devices}: no contender says how it uses several; allowed: --parallel WAY, or +WAY in a "
            f"contender's tuning, with WAY {', '.join(knobs.PARALLEL['jax'])} for jax, ddp for torch"
        )
    if batch_norm == "local":
        _check_local(ways, devices)


def _check_own_models(several: Mapping[str, Any], devices: int, machines: int) -> None:
    """Check that a user's own models train on one machine, and split batches with one copy of the model a device."""
    if machines > 1:
        raise Refused(
            f"--devices {devices} on {machines} machines: models of your own train on one machine; allowed: no launcher"
        )
    name = next((name for name, way in several.items() if way == "sharded"), None)
    if name is not None:
        raise Refused(f"{name}: models of your own are not split by sharded; allowed: +pmap for jax, +ddp for torch")


def check_synchronised(plan: "Plan", has_batch_norm: bool) -> None:
    """Check the batch norm of a user's own models on several devices.

    Raises:
        Refused: it should take the statistics of the whole batch, and the models' own layers do not.
    """
    if plan.devices > 1 and plan.batch_norm == "sync" and has_batch_norm:
        raise Refused(
            f"--devices {plan.devices}: the batch norms of your models take the statistics of each device's part; "
            "allowed: --batch-norm local"
        )


def _check_visible_devices(plan: "Plan") -> None:
    """Check that every machine has its share of the devices."""
    machines, cuda = plan.cluster.count, plan.device == "cuda"
    share, kind = plan.devices // machines, "GPUs are visible" if cuda else "parts of this CPU can be used"
    where = f", {share} on each of {machines} machines" if machines > 1 else ""
    for place, gpus in plan.cluster.gpus().items():
        if share > (most := gpus if cuda else MOST_CPU_DEVICES):
            raise Refused(f"--devices {plan.devices}{where} is not allowed: {most} {kind}{place}")
        if cuda and plan.rotation > gpus:
            raise Refused(f"rounds cannot rotate over {plan.rotation} GPUs: {gpus} {kind}{place}")


def _check_local(ways: Mapping[str, Any], devices: int) -> None:
    """Check that every contender has a local batch norm. Without it a contender computes a different function.

    On one device local and sync are the same. So `samestep scale` may ask for local there.
    """
    if all(way == knobs.NOT_PARALLEL for way in ways.values()):
        raise Refused(
            "--batch-norm local: every contender trains on one device, so its batch norm sees the whole batch; "
            "allowed: --batch-norm sync, or --devices N with contenders that use them (+ddp or +pmap)"
        )
    if devices == 1:
        return
    for name, way in ways.items():
        if way in (knobs.NOT_PARALLEL, "sharded"):
            whole = "a program over the whole batch" if way == "sharded" else "one device"
            raise Refused(
                f"--batch-norm local: {name} is {whole}, so its batch norm sees the whole batch, which is a different "
                "computation; allowed: --batch-norm sync, or only contenders with pmap or ddp"
            )
