"""Read TorchInductor's generated Python: which operations and layers each call of a kernel computes.

A program's function `call` runs kernels in a fixed order. Comments above a call list the nodes of the traced graph and
torch's operations behind it. A kernel for a CPU has no comment: its nodes are those of the next call's comment.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compare.explain.shapes import itemsize, product

_AOT = re.compile(r"^# AOT ID: \['([^']+)'\]", re.MULTILINE)
_COMMENT = re.compile(r"^\s*# Topologically Sorted Source Nodes: \[([^\]]*)\](?:, Original ATen: \[([^\]]*)\])?")
_CALL = re.compile(
    r"(?:^|=\s*|\s)(?:extern_kernels\.(?P<extern>\w+)|torch\.ops\.(?:\w+)\.(?P<aten>\w+)(?:\.\w+)?"
    r"|(?P<kernel>(?:triton|cpp_fused)\w*?)(?:\.run)?)\((?P<arguments>.*)$"
)
_BUFFER = re.compile(r"^\s*(\w+) = empty_strided_\w+\(\(([^()]*)\), \([^()]*\), torch\.(\w+)\)")
_INPUT = re.compile(r"^\s*assert_size_stride\((\w+), \(([^()]*)\), \([^()]*\)")
_REUSE = re.compile(r"^\s*(\w+) = (?:reinterpret_tensor\()?(\w+).*# reuse$")
_WORD = re.compile(r"\b[a-zA-Z_]\w*\b")


@dataclass(frozen=True)
class Site:
    """One call of a kernel in a program.

    Attributes:
        operations: torch's operations behind it, without `aten.`.
        layers: the layers of its nodes, in order, each once.
        bytes: bytes of its tensors.
    """

    operations: Sequence[str]
    layers: Sequence[str]
    bytes: float


@dataclass(frozen=True)
class Program:
    """One compiled graph: its sites by kernel, in the order of calls. `is_backward` tells a backward pass."""

    name: str
    is_backward: bool
    sites: Mapping[str, Sequence[Site]]


@dataclass(frozen=True)
class _Call:
    """One call of a kernel: what it is found by, its site so far, and the names of buffers in its line."""

    key: str
    site: Site
    buffers: frozenset[str]


def read(source: str, nodes: Mapping[str, str]) -> Program:
    """Return the program of a generated module. `nodes` has the layer of each node of the traced graph."""
    match = _AOT.search(source)
    name = match[1] if match else ""
    body = source[max(source.find("def call("), 0) :]
    calls: list[_Call] = []
    sizes: dict[str, float] = {}
    waiting: list[tuple[str, float, frozenset[str]]] = []
    comment: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    for line in body.splitlines():
        if found := _COMMENT.match(line):
            comment = _split(found[1]), tuple(item.removeprefix("aten.") for item in _split(found[2] or ""))
        elif found := _BUFFER.match(line):
            sizes[found[1]] = product(found[2]) * itemsize(found[3])
        elif found := _REUSE.match(line):
            sizes[found[1]] = sizes.get(found[2], 0.0)
        elif found := _INPUT.match(line):
            sizes.setdefault(found[1], product(found[2]) * 4.0)
        elif (found := _CALL.search(line)) and not line.lstrip().startswith(("#", "def ", "import ", "from ")):
            words = set(_WORD.findall(line))
            size = sum(sizes.get(word, 0.0) for word in words)
            buffers = frozenset(word for word in words if word.startswith("buf"))
            kernel = found["kernel"]
            key = kernel or found["extern"] or found["aten"]
            if kernel and comment is None:
                waiting.append((kernel, size, buffers))
                continue
            listed, operations = comment or ((), (key,))
            layers = _find_layers(listed, nodes)
            calls += [_Call(e, Site(_words(e), layers[:-1] or layers, bytes_), b) for e, bytes_, b in waiting]
            waiting.clear()
            calls.append(_Call(key, Site(operations or (key,), layers, size), buffers))
            comment = None
    calls += [_Call(earlier, Site(_words(earlier), (), bytes_), buffers) for earlier, bytes_, buffers in waiting]
    return Program(name, "backward" in name, _group_sites(calls))


def _group_sites(calls: Sequence[_Call]) -> dict[str, list[Site]]:
    """Return the sites by kernel. A site without layers has those of the next one that shares a buffer with it.

    Nodes of a backward pass have names of their own, such as the gradient of a ReLU before a batch norm's.
    """
    sites: defaultdict[str, list[Site]] = defaultdict(list)
    for index, call in enumerate(calls):
        site = call.site
        if not site.layers:
            readers = (later.site.layers for later in calls[index + 1 :] if later.buffers & call.buffers)
            site = replace(site, layers=next(filter(None, readers), ()))
        sites[call.key].append(site)
    return dict(sites)


def _find_layers(names: Sequence[str], nodes: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(nodes[name] for name in names if name in nodes))


def _split(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (item.strip() for item in text.split(","))))


def _words(kernel: str) -> tuple[str, ...]:
    """Return the operations that TorchInductor put into a kernel's name, as well as a name can tell them apart."""
    text = re.sub(r"_\d+$", "", kernel.removeprefix("cpp_fused_").removeprefix("triton_"))
    known = sorted(_KNOWN, key=len, reverse=True)
    words: list[str] = []
    while text:
        text = text.lstrip("_") if not any(text.startswith(word) for word in known) else text
        word = next((word for word in known if text.startswith(word)), None)
        if word is None:
            word = text.partition("_")[0] or text
        words.append(word)
        text = text[len(word) :].removeprefix("_") if len(text) > len(word) else ""
    return tuple(words)


_KNOWN = (
    "_to_copy",
    "_unsafe_view",
    "_log_softmax",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit_functional",
    "native_batch_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "convolution_backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "nll_loss_forward",
    "nll_loss_backward",
    "scalar_tensor",
    "slice_backward",
    "threshold_backward",
    "zeros_like",
    "empty_like",
    "ones_like",
    "constant_pad_nd",
)
