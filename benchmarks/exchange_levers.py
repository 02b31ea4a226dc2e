"""Changes to what torch's devices exchange for a synchronised batch norm, for `benchmarks.step_time --lever` to try."""

import atexit
import os
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo import compiled_autograd
from torch._dynamo import config as dynamo
from torch._inductor import config
from torch._inductor.fx_passes.ddp_fusion import call_function
from torch.distributed import _functional_collectives as collectives
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.fx import Graph, Node
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from torchbackend import exchange, parallel, tuning
from torchbackend.step import TrainingStep

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional


def one_shot() -> None:
    """Exchange by torch's kernel for small sums through NVLink, where each device writes in a place of its own."""
    _through_symmetric_memory()
    exchange._gathered = lambda x, *_: _Sums.apply(x)


def one_shot_forward() -> None:
    """The same forward alone, beside the knob `overlap-exchanges`, which hides those backward."""
    _through_symmetric_memory()
    exchange._gathered = lambda x, *_: _SumsForward.apply(x)


def python_reducer(fused: tuple[Any, ...] = ("fuse_ddp_with_coalesced_op", "schedule_comm_wait")) -> None:
    """Have DistributedDataParallel's reductions within the compiled backward pass, by torch's compiled autograd."""
    plain, step = tuning.prepare, TrainingStep.__call__

    def prepare(*arguments: Any, **options: Any) -> None:
        plain(*arguments, **options)
        dynamo.optimize_ddp = "python_reducer"
        config._fuse_ddp_communication_passes = [_as_computed, *fused]

    def call(self: TrainingStep, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with compiled_autograd._enable(torch.compile(dynamic=False), dynamic=False):
            return step(self, images, labels)

    tuning.prepare = prepare
    TrainingStep.__call__ = call


def joint_reducer() -> None:
    """The same, each bucket one array, in which kernels that compute gradients write them, as they lie in memory."""
    python_reducer((_joint,))


def joint_reducer_apart() -> None:
    """The same, and gradients by a communicator of their own."""
    joint_reducer()
    apart()


def _joint(graph: Graph, bucket_size_mb: int) -> None:
    """Reduce gradients that are reduced one by one as buckets, each as soon as it is full."""
    output = next(iter(graph.find_nodes(op="output")))
    bucket, size = list[Node](), 0
    first = 2**20  # bytes of the first one, as DistributedDataParallel has it
    for reduced in graph.find_nodes(op="call_function", target=_C10D.all_reduce.default):
        divided = reduced.args[0]
        (waited,) = reduced.users
        if divided.target is not _ATEN.div.Tensor or [*waited.users] != [output]:
            continue
        bucket.append(reduced)
        size += divided.meta["val"].nbytes
        if size >= first:
            _as_one(graph, bucket, output)
            bucket, size, first = [], 0, bucket_size_mb * 2**20
    if bucket:
        _as_one(graph, bucket, output)
    graph.eliminate_dead_code()


def _as_one(graph: Graph, bucket: list[Node], output: Node) -> None:
    nodes = {node: place for place, node in enumerate(graph.nodes)}
    last = max((reduced.args[0] for reduced in bucket), key=nodes.__getitem__)
    values = [reduced.args[0].meta["val"] for reduced in bucket]
    flat, found = list[Node](), dict[Node, Node]()
    with graph.inserting_before(last.next):
        for reduced, value in zip(bucket, values, strict=True):
            lying = call_function(graph, _ATEN.permute.default, (reduced.args[0], _memory_order(value)))
            flat.append(call_function(graph, _ATEN.reshape.default, (lying, [value.numel()])))
        joint = call_function(graph, _ATEN.cat.default, (flat,))
        total = call_function(graph, _C10D.all_reduce.default, (joint, *bucket[0].args[1:]))
    with graph.inserting_before(output):
        total = call_function(graph, _C10D.wait_tensor.default, (total,))
        start = 0
        for reduced, value in zip(bucket, values, strict=True):
            order, end = _memory_order(value), start + value.numel()
            part = call_function(graph, _ATEN.slice.Tensor, (total, 0, start, end))
            part = call_function(graph, _ATEN.reshape.default, (part, [value.shape[axis] for axis in order]))
            (waited,) = reduced.users
            found[waited] = call_function(
                graph, _ATEN.permute.default, (part, [order.index(axis) for axis in range(value.ndim)])
            )
            start = end
    output.args = (tuple(found.get(each, each) for each in output.args[0]),)
    for waited in found:  # torch leaves exchanges where they are, needed or not
        graph.erase_node(waited)
    for reduced in bucket:
        graph.erase_node(reduced)


def _memory_order(value: torch.Tensor) -> list[int]:
    return sorted(range(value.ndim), key=lambda axis: (-value.stride(axis), axis))


def _as_computed(graph: Graph) -> None:
    """Reduce gradients as they lie in memory: torch 2.11 has them copied to where no parameter of NHWC lies."""
    output = next(iter(graph.find_nodes(op="output")))
    for copied in graph.find_nodes(op="call_function", target=_ATEN.copy.default):
        into, gradient = copied.args
        targets = [user.target for user in copied.users]
        if into.target is not _ATEN.new_empty_strided.default or targets != [_ATEN.div.Tensor]:
            continue
        mode = gradient.meta["val"].fake_mode
        (node,) = copied.users
        copied.replace_all_uses_with(gradient)
        while node is not output:
            with mode:
                node.meta["val"] = torch.empty_like(gradient.meta["val"])
            node.meta["tensor_meta"] = _extract_tensor_metadata(node.meta["val"])
            (following,) = node.users
            if following is output:
                for place, each in enumerate(output.args[0]):
                    if each is node:
                        output.meta["original_output_strides"][place] = node.meta["val"].stride()
            node = following
    graph.eliminate_dead_code()


def apart() -> None:
    """Give gradients a communicator of their own, so that an exchange of batch norm's need not wait for them.

    Torch 2.11 does not come to the end of a process that has captured both, which is why it is left at once.
    """
    atexit.register(os._exit, 0)
    whole: Any = parallel.DistributedDataParallel
    parallel.DistributedDataParallel = lambda *given, **named: whole(*given, process_group=dist.new_group(), **named)


def python_reducer_apart() -> None:
    """Both."""
    python_reducer()
    apart()


def python_reducer_one_shot_forward() -> None:
    """Both, and batch norm's exchanges forward by torch's kernel for small sums."""
    python_reducer_apart()
    one_shot_forward()


def _through_symmetric_memory() -> None:
    config._collective.auto_select = True
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    plain = parallel.join

    def join(*arguments: Any) -> None:
        plain(*arguments)
        symmetric_memory.enable_symm_mem_for_group(_everyone().group_name)

    parallel.join = join


class _SumsForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Return x [1, 2, C] of every device, [N, 2, C]."""
        own = torch.arange(dist.get_world_size(), device=x.device) == dist.get_rank()
        return collectives.all_reduce(torch.where(own[:, None, None], x, 0), "sum", _everyone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the sum of all devices' gradients of this one's."""
        return collectives.reduce_scatter_tensor(gradient.contiguous(), "sum", 0, _everyone())


class _Sums(_SumsForward):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the sum of all devices' gradients of this one's, of which all are summed."""
        return collectives.all_reduce(gradient.contiguous(), "sum", _everyone())[dist.get_rank()][None]


def _everyone() -> dist.ProcessGroup:
    everyone = dist.group.WORLD
    assert everyone is not None  # all have joined
    return everyone
