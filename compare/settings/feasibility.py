"""Whether what a plan's knobs ask for is there: blocks, a compiler, a search for kernels."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from compare.base import workloads
from compare.base.interface import Refused
from compare.base.knobs import Value
from compare.base.precisions import PRECISIONS
from compare.machine import variables

if TYPE_CHECKING:
    from compare.settings.plan import Plan


def check(plan: "Plan") -> None:
    """Check what no knob can have by itself: it is the model's, the environment's, or some contender's program's.

    Raises:
        Refused: naming what was asked for and what is allowed.
    """
    for contender in plan.contenders:
        switches = plan.knobs(contender)
        if switches["rematerialisation"]:
            try:
                workloads.blocks(plan.workload.model)
            except Refused as error:
                raise Refused(f"{contender.name}, workload {plan.workload.name}: {error}") from None
        if switches.get("overlap-exchanges") and plan.workload.model.family not in workloads.WITH_BATCH_NORM:
            raise Refused(
                f"{contender.name}, workload {plan.workload.name}: its model has no batch norm whose exchanges "
                "overlap-exchanges could overlap; allowed: +overlap-exchanges=off"
            )
        if switches.get("overlap-exchanges") and plan.batch_norm != "sync":
            raise Refused(
                f"--batch-norm {plan.batch_norm} with {contender.name}: between layers nothing is exchanged that "
                "overlap-exchanges could overlap; allowed: --batch-norm sync, or +overlap-exchanges=off"
            )
        if contender.backend == "torch" and (reading := _host_reads(switches, plan)):
            raise Refused(
                f"{contender.name}, {plan.precision}: graph-capture needs fused-optimizer in torch, for without it "
                f"the host reads {reading} in every step; allowed: with +fused-optimizer, or +graph-capture=off"
            )
        off = variables.compiler_off(contender.backend, os.environ)
        if switches["compile"] and off and plan.cluster.here:
            raise Refused(
                f"{off} in the environment has {contender.backend} compile nothing, and {contender.name} asks for "
                "compile; allowed: without that variable"
            )
    if plan.search_anew and not any(map(plan.keeps_search, plan.contenders)):
        how = f"{plan.device}{', deterministic' if plan.deterministic else ''}"
        raise Refused(
            f"--search-anew: on {how} no contender's program keeps what a search for kernels found; allowed: with "
            "--device cuda a contender of jax, unless +kernel-search=off, or of torch with +max-autotune"
        )


def _host_reads(switches: Mapping[str, Value], plan: "Plan") -> str | None:
    """Return what torch's update reads on the host unless it is fused, as no CUDA graph can; None for nothing."""
    if not switches["graph-capture"] or switches["fused-optimizer"]:
        return None
    if PRECISIONS[plan.precision].has_loss_scale:
        return "whether gradients overflow"
    rule = plan.workload.optimizer
    return None if rule.name != "sgd" or rule.schedule.is_constant else "sgd's scheduled learning rate"
