"""Read a profile of torch: its kernels with their class and layer.

On a GPU, kernels ran on the device, and the event that launched each one says what for. On a CPU, the outermost
operations of torch take the place of kernels.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compare.base.operation_counts import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT
from compare.base.profiles import LAYER_PREFIX, Event, Profile
from compare.base.trace import PRODUCTS
from compare.explain import inductor_source, work_classes
from compare.explain.inductor_source import Program, Site
from compare.explain.kernels import Kernel
from compare.explain.shapes import itemsize
from compare.explain.work_classes import CONVOLUTIONS, LAYOUT, POINTWISE, PRODUCT, REDUCTION

UPDATE = "update"

_MICRO = 1e-6
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME = ("cuda_runtime", "cuda_driver")
_HOST = ("cpu_op", "user_annotation", *_RUNTIME)
_AUTOGRAD = "autograd::engine::evaluate_function: "
_GRAPHS = ("## Call CompiledFxGraph", "CompiledFunctionBackward", "CompiledFunction")
_KERNELS_OF_COMPILERS = ("triton_", "cpp_fused")
_ELEMENTWISE = "at::native::"
_MATRIX_PRODUCTS = ("aten::mm", "aten::addmm")
"""Kinds of layers whose work is a product."""
_GRADIENTS = ("aten::convolution_backward", "aten::cudnn_convolution_backward")


@dataclass
class _Node:
    """One event of the host, and the event that it lies in."""

    event: Event
    parent: "_Node | None"
    site: Site | None = None

    @property
    def name(self) -> str:
        return str(self.event["name"])

    def chain(self) -> "Iterator[_Node]":
        """Yield this event and all that it lies in, from the inside."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass
class _Context:
    """What is known about all events."""

    profile: Profile
    layer_of_sequence: dict[Any, str] = field(default_factory=dict[Any, str])
    forward_layers: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))
    layers_of_backward: dict[int, str] = field(default_factory=dict[int, str])

    gradients: dict[int, str] = field(default_factory=dict[int, str])

    def guess_gradient(self, name: str, node: _Node) -> str:
        """Return the direction of a kernel in the event of a convolution's gradients.

        Some kernels say it in their name. Torch computes the data gradient first, with one product of matrices. So the
        next product is the weight gradient.
        """
        named = work_classes.classify_name(name)
        direction = next((each for each in (DATA_GRADIENT, WEIGHT_GRADIENT) if named == CONVOLUTIONS[each]), "")
        if not direction:
            concrete = node.event.get("args", {}).get("Concrete Inputs", [])
            mask = str(concrete[10]).lower() if len(concrete) > 10 else ""
            is_first = id(node) not in self.gradients and not mask.startswith("[false, true")
            direction = DATA_GRADIENT if is_first else WEIGHT_GRADIENT
        self.gradients[id(node)] = direction
        return direction

    @property
    def sizes(self) -> set[int]:
        return {size for name, size in self.profile.parameters.items() if name.endswith("kernel")}


def read(profile: Profile) -> list[Kernel]:
    """Return the kernels of a profile, in the order in which they began."""
    nodes = _nest(event for event in profile.events if event["cat"] in _HOST)
    context = _Context(profile)
    launched = {
        node.event["args"]["correlation"]: node for node in nodes if "correlation" in node.event.get("args", {})
    }
    on_device = [event for event in profile.events if event["cat"] in _DEVICE]
    kernel_names = {event["args"].get("correlation"): str(event["name"]) for event in on_device}
    _find_sites(nodes, profile, kernel_names)
    _find_layers(nodes, context)
    if on_device:
        pairs = [(event, launched.get(event["args"].get("correlation"))) for event in on_device]
    else:
        pairs = [(node.event, node) for node in nodes if _is_outermost(node)]
    pairs.sort(key=lambda pair: pair[0]["ts"])
    return [_make_kernel(event, node, context) for event, node in pairs]


def _nest(events: Iterator[Event]) -> list[_Node]:
    """Return the events of the host in time order, each with the event of its thread that it lies in."""
    nodes = list[_Node]()
    stacks: defaultdict[str, list[_Node]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        stack = stacks[str(event["tid"])]
        while stack and stack[-1].event["ts"] + stack[-1].event["dur"] < event["ts"] + event["dur"]:
            stack.pop()
        node = _Node(event, stack[-1] if stack else None)
        nodes.append(node)
        stack.append(node)
    return nodes


def _is_outermost(node: _Node) -> bool:
    """Tell whether an event is an operation that lies in no other one: a CPU's kernel."""
    if not _is_operation(node):
        return False
    return not any(_is_operation(outer) for outer in list(node.chain())[1:])


def _is_operation(node: _Node) -> bool:
    return node.name.startswith(("aten::", *_KERNELS_OF_COMPILERS))


def _find_sites(nodes: Sequence[_Node], profile: Profile, kernel_names: Mapping[Any, str]) -> None:
    """Give every event in a compiled graph the call of that graph's program that it is.

    A graph runs its calls in the order of its program.
    """
    programs = [inductor_source.read(source, profile.nodes) for source in profile.programs]
    if not programs:
        return
    of_graph: dict[tuple[bool, str], Program] = {}
    counts: dict[int, Counter[str]] = {}
    owners: dict[int, _Node] = {}
    for node in nodes:
        graph = next((outer for outer in node.chain() if outer.name.startswith(_GRAPHS)), None)
        if graph is None or graph is node:
            continue
        owners[id(graph)] = graph
        is_backward = any("Backward" in outer.name for outer in graph.chain())
        program = of_graph.setdefault(
            (is_backward, graph.name), _choose_program(programs, is_backward, of_graph, graph.name)
        )
        key = _key(node, kernel_names)
        if key is None or key not in program.sites:
            continue
        if any(outer.site is not None for outer in node.chain()):
            continue  # an operation within one that has its site
        number = counts.setdefault(id(graph), Counter())[key]
        counts[id(graph)][key] += 1
        node.site = program.sites[key][number % len(program.sites[key])]


def _choose_program(
    programs: Sequence[Program], is_backward: bool, taken: Mapping[tuple[bool, str], Program], name: str
) -> Program:
    """Return the first program of that direction which no other graph has."""
    if (is_backward, name) in taken:
        return taken[is_backward, name]
    fitting = [program for program in programs if program.is_backward == is_backward] or list(programs)
    used = [id(program) for (backward, _), program in taken.items() if backward == is_backward]
    return next((program for program in fitting if id(program) not in used), fitting[-1])


def _key(node: _Node, kernel_names: Mapping[Any, str]) -> str | None:
    if node.name.startswith("aten::"):
        return node.name.removeprefix("aten::")
    if node.name.startswith(_KERNELS_OF_COMPILERS):
        return node.name
    name = kernel_names.get(node.event.get("args", {}).get("correlation"), "")
    return name if name.startswith(_KERNELS_OF_COMPILERS) else None


def _find_layers(nodes: Sequence[_Node], context: _Context) -> None:
    """Remember the layers of the forward pass, by autograd's sequence numbers and by the shapes of convolutions.

    The backward pass takes its convolutions in the opposite order.
    """
    for node in nodes:
        arguments = node.event.get("args", {})
        sequence = arguments.get("Sequence number")
        layer = _scope(node) or (node.site.layers[-1] if node.site and node.site.layers else None)
        if layer and sequence is not None and not node.name.startswith(_AUTOGRAD):
            context.layer_of_sequence.setdefault(sequence, layer)
        shapes = repr(arguments.get("Input Dims", [])[:2])
        if node.name == "aten::convolution" and layer:
            context.forward_layers[shapes].append(layer)
        if node.name == "aten::convolution_backward":
            shapes = repr(arguments.get("Input Dims", [])[1:3])
            if context.forward_layers[shapes]:
                context.layers_of_backward[id(node)] = context.forward_layers[shapes].pop()


def _scope(node: _Node) -> str | None:
    """Return the innermost layer whose forward pass an event lies in."""
    scopes = (outer.name for outer in node.chain() if outer.name.startswith(LAYER_PREFIX))
    return next((name.removeprefix(LAYER_PREFIX) for name in scopes), None)


def _make_kernel(event: Event, node: _Node | None, context: _Context) -> Kernel:
    name, begin = str(event["name"]), event["ts"] * _MICRO
    lane = str(event["args"].get("stream", event["tid"]))
    own_name = work_classes.classify_name(name)
    if node is None:
        return Kernel(name, begin, begin + event["dur"] * _MICRO, lane, own_name or work_classes.UNATTRIBUTED)
    chain = list(node.chain())
    site = next((outer.site for outer in chain if outer.site is not None), None)
    operations = [outer.name for outer in chain if outer.name.startswith("aten::")]
    is_update = any(outer.name.startswith("Optimizer.") for outer in chain)
    is_backward = any(outer.name.startswith(_AUTOGRAD) for outer in chain)
    layer = _layer(chain, site, context, is_update)
    if not is_update and context.profile.layers.get(layer) not in PRODUCTS:
        layer = _product_layer(chain, context) or layer
    known = operations if site is None or not name.startswith(_KERNELS_OF_COMPILERS) else site.operations
    kinds = [context.profile.layers.get(each, "") for each in (site.layers if site else [layer])]
    work = _classify(name, operations, known, kinds, is_update, is_backward)
    outer_operation = next((each for each in reversed(operations)), known[0] if known else "")
    work, direction = _direct(work, name, chain, operations, is_update, is_backward, context)
    return Kernel(
        name,
        begin,
        begin + event["dur"] * _MICRO,
        lane,
        work,
        layer,
        direction,
        site.bytes if site is not None else _bytes(chain),
        outer_operation.removeprefix("aten::"),
        work == LAYOUT and work_classes.is_cast(known[:3]),
    )


def _layer(chain: Sequence[_Node], site: Site | None, context: _Context, is_update: bool) -> str:
    if is_update:
        return ""
    for outer in chain:
        if id(outer) in context.layers_of_backward:
            return context.layers_of_backward[id(outer)]
    if scope := _scope(chain[0]):
        return scope
    if site is not None and site.layers:
        if any(outer.site is site and outer.name.startswith("aten::") for outer in chain):
            return site.layers[-1]  # its own layer comes after those of its inputs
        kinds = context.profile.layers
        work = work_classes.classify_torch(site.operations, [kinds.get(each, "") for each in site.layers])
        return work_classes.choose_layer(site.layers, kinds, work)
    for outer in chain:
        if outer.name.startswith(_AUTOGRAD):
            return context.layer_of_sequence.get(outer.event["args"].get("Sequence number"), "")
    return ""


def _product_layer(chain: Sequence[_Node], context: _Context) -> str:
    """Return the only layer whose kernel has the size of one of a product's matrices, or "".

    A program that torch has kept from an earlier run may name its nodes otherwise than today's trace.
    """
    for outer in chain:
        dims: list[list[int]] = outer.event.get("args", {}).get("Input Dims", [])
        if outer.name not in _MATRIX_PRODUCTS:
            continue
        matrices: list[list[int]] = [shape for shape in dims if len(shape) == 2]
        if len(matrices) > 1:
            left, right = matrices[:2]
            sizes = {left[0] * left[1], right[0] * right[1], left[0] * right[1]}
            owners = {
                name.rpartition(".")[0]
                for name, size in context.profile.parameters.items()
                if name.endswith("kernel") and size in sizes
            }
            return owners.pop() if len(owners) == 1 else ""
    return ""


def _classify(
    name: str,
    operations: Sequence[str],
    known: Sequence[str],
    kinds: Sequence[str],
    is_update: bool,
    is_backward: bool,
) -> str:
    own_name = None if name.startswith((*_KERNELS_OF_COMPILERS, "aten::")) else work_classes.classify_name(name)
    if own_name is not None and work_classes.moves_data(name):
        return own_name
    if not known and own_name is None:
        return work_classes.OPTIMIZER if is_update else work_classes.UNATTRIBUTED
    if is_update:
        return work_classes.OPTIMIZER
    if own_name in (CONVOLUTIONS[DATA_GRADIENT], CONVOLUTIONS[WEIGHT_GRADIENT]):
        return own_name
    if not known:
        return own_name or work_classes.UNATTRIBUTED
    innermost = work_classes.classify_torch(operations[:1], ()) if operations else None
    if name.startswith(_KERNELS_OF_COMPILERS):
        # A compiled kernel computes no convolution: its name may list the operation that it prepares.
        plain = [each for each in known if "convolution" not in each and each not in ("mm", "addmm", "bmm")]
        work = work_classes.classify_torch(plain or ["add"], kinds)
        sums = name.startswith(("triton_red", "triton_per"))
        return REDUCTION if sums and work in (POINTWISE, LAYOUT) else work
    if _ELEMENTWISE in name and any("conv" in each for each in operations):
        return REDUCTION if own_name == REDUCTION else POINTWISE  # adds a bias, or sums its gradient
    if innermost == LAYOUT and len(operations) > 1 and name != operations[-1]:
        return LAYOUT
    if own_name == REDUCTION and is_backward and any("convolution_backward" in each for each in operations):
        return REDUCTION  # the gradient of a bias
    return work_classes.classify_torch(known, kinds if own_name is None else ())


def _direct(
    work: str,
    name: str,
    chain: Sequence[_Node],
    operations: Sequence[str],
    is_update: bool,
    is_backward: bool,
    context: _Context,
) -> tuple[str, str]:
    """Return the class with its direction, and the direction."""
    if is_update:
        return work, UPDATE
    if any(each in _GRADIENTS for each in operations):
        if work == CONVOLUTIONS[WEIGHT_GRADIENT] or work == REDUCTION:
            return work, WEIGHT_GRADIENT
        if work == CONVOLUTIONS[FORWARD]:
            node = next(outer for outer in chain if outer.name in _GRADIENTS)
            direction = context.guess_gradient(name, node)
            return CONVOLUTIONS[direction], direction
        return work, DATA_GRADIENT
    if not is_backward:
        return work, FORWARD
    if work == PRODUCT and _output_size(chain) in context.sizes:
        return work, WEIGHT_GRADIENT
    if work == REDUCTION and any(each in ("aten::sum",) for each in operations):
        return work, WEIGHT_GRADIENT
    return work, DATA_GRADIENT


def _output_size(chain: Sequence[_Node]) -> int:
    """Return the number of values of a product's output, from the shapes of its inputs."""
    for outer in chain:
        dims = outer.event.get("args", {}).get("Input Dims", [])
        if outer.name in ("aten::mm", "aten::bmm") and len(dims) > 1 and len(dims[0]) > 1 and len(dims[1]) > 1:
            return int(dims[0][-2]) * int(dims[1][-1])
    return 0


def _bytes(chain: Sequence[_Node]) -> float:
    """Return the bytes of an operation's tensors: its inputs, and an output as large as the largest one."""
    for outer in chain:
        arguments = outer.event.get("args", {})
        dims, types = arguments.get("Input Dims"), arguments.get("Input type")
        if not outer.name.startswith("aten::") or not dims or not types:
            continue
        sizes = [
            _count(shape) * itemsize(str(kind)) for shape, kind in zip(dims, types, strict=False) if shape and kind
        ]
        if sizes:
            return float(sum(sizes) + max(sizes))
    return 0.0


def _count(shape: Any) -> int:
    """Return the number of values of a shape, or of a list of shapes."""
    total = 1
    if shape and isinstance(shape[0], list):
        return sum(_count(each) for each in shape)
    for size in shape:
        total *= int(size)
    return total
