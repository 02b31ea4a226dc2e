"""How a training step is turned into a program: the knobs' mechanisms."""

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._dynamo import compiled_autograd
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor import cpu_vec_isa
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph

from torchbackend import layout, memory, overlap
from torchbackend.only import buckets, programs

# DistributedDataParallel orders its buckets in its first steps (pytorch.org, CUDA semantics).
_WARM_UP_STEPS, _WARM_UP_STEPS_OF_DDP = 3, 11

OneStep = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Pass = Callable[[Graph], None]
"""Changes a graph of TorchInductor's in place."""


def compiled(function: Callable[..., Any], knobs: Mapping[str, Any], *, shared: bool = False) -> Callable[..., Any]:
    """Return the function compiled by TorchInductor if the knobs say so.

    `shared`, other processes of this contender's compile it too (`torchbackend.only.programs`).
    """
    if not knobs["compile"]:
        return function
    return torch.compile(function, dynamic=False, backend=programs.compiler(shared=shared))


def autograd(*, compiled: bool, shared: bool = False) -> Callable[[], AbstractContextManager[None]]:
    """Return what makes a context for a forward and a backward pass, in which the latter is `compiled` if wanted.

    DistributedDataParallel's hooks, and so its reductions, are then part of the program (pytorch.org, tutorial on
    compiled autograd). torch's own switch for it is of functions that are compiled with their backward pass in them.
    """
    if not compiled:
        return nullcontext
    compiler = torch.compile(dynamic=False, backend=programs.compiler(shared=shared))
    return lambda: compiled_autograd._enable(compiler, dynamic=False)


def prepare(knobs: Mapping[str, Any], device: str, *, exchanges: bool) -> None:
    """Set the compiler's options, import it, and have it find this machine's vector instructions.

    No compile time contains these. For vector instructions it compiles and loads small probes, which say nothing of a
    program, so they are kept where torch keeps its programs by default, whatever cache this process has been given.
    `exchanges` says whether devices exchange anything between the layers of a model (`exchange.in_step`).
    """
    joint, late = bool(knobs["compiled-autograd"]), exchanges and bool(knobs["overlap-exchanges"])
    # Whether DistributedDataParallel reduces within a compiled backward pass, and if not, whether what is compiled is
    # cut at its buckets. Torch keeps no traced program of the parts.
    dynamo.optimize_ddp = "python_reducer" if joint else bool(knobs["overlap-reduction"])
    inductor._fuse_ddp_communication_passes = []  # torch's own join no gradient of a convolution in NHWC
    passes: list[Pass] = [buckets.join] * joint + [overlap.beside_exchanges] * late
    inductor.post_grad_custom_post_pass = _Passes(*passes) if passes else None
    inductor.reorder_for_peak_memory = not late  # it would, for a few bytes, put them back where they were
    inductor.conv_1x1_as_mm = bool(knobs["pointwise-matmul"])
    inductor.combo_kernels = bool(knobs["concurrent-kernels"])
    inductor.max_autotune = inductor.coordinate_descent_tuning = bool(knobs["max-autotune"])
    # An exchange lies between the moments of batch norm's input and its normalisation. Torch holds what comes after for
    # too far away to be computed again in the backward pass, and would write and read a mask for every ReLU.
    functorch.ban_recompute_used_far_apart = not exchanges
    # What hooks record in a recomputed block they record in the forward pass alone, as without the compiler.
    dynamo.skip_fwd_side_effects_in_bwd_under_checkpoint = bool(knobs["rematerialisation"])
    if knobs["compile"]:
        programs.inductor_compiler()
    if knobs["compile"] and device == "cpu":
        with mock.patch.dict(os.environ):
            os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
            cpu_vec_isa.valid_vec_isa_list()  # torch remembers the answer


def changes(wanted: Pass) -> bool:
    """Whether what is compiled from now on is changed so."""
    passes = inductor.post_grad_custom_post_pass
    return isinstance(passes, _Passes) and wanted in passes.all


class _Passes(CustomGraphPass):
    """Several, one after the other, for torch 2.11 takes one."""

    def __init__(self, *passes: Pass) -> None:
        self.all = passes

    def __call__(self, graph: Graph) -> None:
        for each in self.all:
            each(graph)
        graph.lint()

    def uuid(self) -> tuple[Any, ...]:
        return *(each.__name__ for each in self.all), get_hash_for_files(tuple(map(inspect.getfile, self.all)))


class Several:
    """A CUDA graph of `count` training steps over batches [P, N, ...].

    Where the graph takes every batch equally often it reads them in place; elsewhere the device counts where it is, and
    each batch is copied.

    Args:
        step: trains one step on (images, labels) and returns its loss.
        snapshot: returns a function that puts the training state back; capturing has to take warm-up steps first.
        images: [P, N, C, H, W], labels: [P, N] or [P, N, H, W]; later batches are copied into these.
        count: steps captured.
    """

    def __init__(
        self,
        step: OneStep,
        snapshot: Callable[[], Callable[[], None]],
        images: torch.Tensor,
        labels: torch.Tensor,
        count: int,
    ) -> None:
        self.images, self.labels = images, labels
        self._whole = count % len(labels) == 0
        self._position = torch.zeros(1, dtype=torch.int64, device=images.device)
        restore = snapshot()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for index in range(_WARM_UP_STEPS_OF_DDP if dist.is_initialized() else _WARM_UP_STEPS):
                self._one(step, index)
        torch.cuda.current_stream().wait_stream(stream)
        restore()
        del restore  # and the copy of the state with it; capturing carries nothing out
        self._graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog, a thread of its own, makes calls that would end a capture which forbids them everywhere.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            memory.begin_anew(images.device)  # what the warm-up cached has been given back
            self._losses = torch.stack([self._one(step, index) for index in range(count)])

    def refill(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Replace the batches by others of the same shape."""
        self.images.copy_(images)
        self.labels.copy_(labels)

    def begins(self, position: int) -> bool:
        """Tell whether the graph may start at that batch: one that reads batches in place has its own first."""
        return position == 0 or not self._whole

    def __call__(self, start: int) -> torch.Tensor:
        """Train the captured steps from batch `start`, where it `begins`, and return their losses."""
        self._position.fill_(start)
        self._graph.replay()
        return self._losses.clone()

    def _one(self, step: OneStep, index: int) -> torch.Tensor:
        if self._whole:
            return step(self.images[index % len(self.labels)], self.labels[index % len(self.labels)])
        images, labels = (layout.selected(pool, self._position) for pool in (self.images, self.labels))
        self._position.add_(1).remainder_(len(self.labels))
        return step(images, labels)
