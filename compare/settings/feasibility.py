"""Check that a model, the environment and the programs have what a plan's knobs need."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from compare.base import workloads
from compare.base.interface import INFER, TRAIN, Refused
from compare.base.knobs import Value
from compare.base.precisions import PRECISIONS
from compare.machine import variables

if TYPE_CHECKING:
    from compare.settings.plan import Plan


def check(plan: "Plan") -> None:
    """Check knobs against the model, the environment and other settings of a plan.

    Raises:
        Refused: with the request and what is allowed.
    """
    if plan.task == INFER and plan.workload.task is not None:
        raise Refused(
            "--task infer: requests take images and give classes, and this pair has other inputs, outputs or losses; "
            "allowed: --task train"
        )
    for contender in plan.contenders:
        switches = plan.knobs(contender)
        is_own = plan.workload.model.family == workloads.PAIR
        if is_own and contender.backend == "jax" and "fold-batch-norm" in contender.tuning.split("+"):
            raise Refused(
                f"{contender.name}: fold-batch-norm folds the built-in workloads and torch models; allowed for a flax "
                "model of your own: without it"
            )
        if switches["rematerialisation"]:
            try:
                workloads.list_blocks(plan.workload.model)
            except Refused as error:
                raise Refused(f"{contender.name}, workload {plan.workload.name}: {error}") from None
        if switches.get("fused-batch-norm") and plan.workload.model.arguments.get("block") != "bottleneck":
            raise Refused(
                f"{contender.name}, workload {plan.workload.name}: fused-batch-norm is for residual blocks with "
                "1x1, 3x3 and 1x1 convolutions; allowed: --workload resnet50, or without fused-batch-norm"
            )
        if contender.backend == "torch" and (reading := _host_reads(switches, plan)):
            raise Refused(
                f"{contender.name}, {plan.precision}: graph-capture needs fused-optimizer in torch, because without "
                f"it the host reads {reading} in every step; allowed: with +fused-optimizer, or +graph-capture=off"
            )
        off = variables.find_compiler_off(contender.backend, os.environ)
        if switches["compile"] and off and plan.cluster.here:
            raise Refused(
                f"{off} in the environment turns off the compiler of {contender.backend}, and {contender.name} asks "
                "for compile; allowed: without that variable"
            )
    if plan.explain and (plan.devices > 1 or plan.cluster.count > 1):
        raise Refused("--explain with several devices is not allowed; allowed: one device of one machine")
    if plan.explain and plan.task != TRAIN:
        raise Refused(f"--explain with --task {plan.task} is not allowed; allowed: --task {TRAIN}")
    if plan.search_anew and not any(map(plan.keeps_search, plan.contenders)):
        how = f"{plan.device}{', deterministic' if plan.deterministic else ''}"
        raise Refused(
            f"--search-anew: on {how} no contender's program keeps the kernels that a search chose; allowed: with "
            "--device cuda a contender of jax, unless +kernel-search=off, or of torch with +max-autotune"
        )


def _host_reads(switches: Mapping[str, Value], plan: "Plan") -> str | None:
    """Return the value that torch's update reads on the host, which no CUDA graph can. None if it reads nothing."""
    if plan.task == INFER or not switches["graph-capture"] or switches["fused-optimizer"]:
        return None
    if PRECISIONS[plan.precision].has_loss_scale:
        return "whether gradients overflow"
    rule = plan.workload.optimizer
    return None if rule.name != "sgd" or rule.schedule.is_constant else "sgd's scheduled learning rate"
