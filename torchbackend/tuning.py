"""How a training step is turned into a program: the knobs' mechanisms."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import config as dynamo
from torch._dynamo.utils import counters
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch.backends import cudnn

from compare.base.interface import KnobValues, RunSpec
from compare.machine.variables import PROBES
from torchbackend import overlap
from torchbackend.only import (
    buckets,
    fused_convolutions,
    graph_passes,
    programs,
    vector_instructions,
    whole_files,
)
from torchbackend.precision import Policy


def compile_step(step: Callable[..., Any], knobs: KnobValues, *, shared: bool = False) -> Callable[..., Any]:
    """Return the function compiled by TorchInductor, or as it is if the knobs say so.

    If `shared`, this contender's other processes compile it, too (`torchbackend.only.programs`).
    """
    if not knobs["compile"]:
        return step
    backend = programs.compiler(shared=shared)
    return programs.load_or_trace(lambda: torch.compile(step, dynamic=False, backend=backend), step)


def prepare(knobs: KnobValues, device: str, *, exchanges: bool, keeps_traces: bool = False) -> None:
    """Set the compiler's options, import it, and let it find this machine's vector instructions.

    So no compile time contains these. To find vector instructions, torch compiles and loads small probes. They and
    precompiled headers do not depend on a program, so they stay in one private folder from run to run. `exchanges`
    tells whether devices exchange anything between a model's layers. `keeps_traces` is as in `RunSpec`.
    """
    joint, late = bool(knobs["compiled-autograd"]), exchanges and bool(knobs["overlap-exchanges"])
    # DistributedDataParallel reduces within a compiled backward pass, or programs are cut at its buckets. Torch caches
    # no traced program of these parts.
    cudnn.benchmark = bool(knobs["kernel-search"])
    dynamo.optimize_ddp = "python_reducer" if joint else bool(knobs["overlap-reduction"])
    inductor._fuse_ddp_communication_passes = []  # torch's own passes join no gradient of a convolution in NHWC
    graph_passes.use_passes(
        [buckets.join] * joint
        + [overlap.overlap_exchanges] * late
        + [fused_convolutions.fuse] * bool(knobs["fused-convolutions"])
    )
    inductor.reorder_for_peak_memory = not late  # to save a few bytes it would undo our order
    inductor.combo_kernels = bool(knobs["concurrent-kernels"])
    inductor.freezing = bool(knobs["constant-weights"])
    inductor.max_autotune = inductor.coordinate_descent_tuning = bool(knobs["max-autotune"])
    # An exchange lies between the moments of batch norm's input and its normalisation. Torch then considers the
    # normalised values too far away to compute them again, and would write and read a mask for every ReLU.
    functorch.ban_recompute_used_far_apart = not exchanges
    # Hooks in a recomputed block record in the forward pass only, as without the compiler.
    dynamo.skip_fwd_side_effects_in_bwd_under_checkpoint = bool(knobs["rematerialisation"])
    programs.use_traces(wanted=keeps_traces and bool(knobs["compile"]))
    if not knobs["compile"]:
        return
    programs.inductor_compiler()
    whole_files.publish()
    for cache in filter(None, map(os.environ.get, ("TORCHINDUCTOR_CACHE_DIR", PROBES))):
        whole_files.drop_broken(Path(cache))
    if probes := os.environ.get(PROBES):
        codecache: Any = importlib.import_module("torch._inductor.codecache")
        codecache._HEADER_DIR = str(Path(probes, "headers"))
        codecache._HEADER_LOCK_DIR = str(Path(probes, "headers", "locks"))
    if device == "cpu":
        vector_instructions.find(Path(probes) if probes else None)


def read_settings(spec: RunSpec, policy: Policy, device: torch.device, *, compiled: bool) -> dict[str, Any]:
    """Return what the switches of this process are now. `compiled` tells whether its step is compiled.

    TorchInductor may leave out roundings between fused operations unless its option forbids it.
    """
    del spec, device  # torch tells all by itself
    mixed = policy.compute_dtype != policy.parameter_dtype
    return {
        "compiled-autograd": counters["compiled_autograd"]["captures"] > 0,
        "graph-breaks": sum(counters["graph_break"].values()),
        "kernel-search": cudnn.benchmark,
        "max-autotune": inductor.max_autotune and inductor.coordinate_descent_tuning,
        "concurrent-kernels": inductor.combo_kernels,
        "fused-convolutions": graph_passes.uses_pass(fused_convolutions.fuse),
        "overlap-exchanges": graph_passes.uses_pass(overlap.overlap_exchanges),
        "excess_precision": compiled and mixed and not inductor.emulate_precision_casts,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "debugging": ["anomaly detection"] if torch.is_anomaly_enabled() else [],
    }
