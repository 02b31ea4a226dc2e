"""What one traced forward pass of a user's model says of it, the same words from both frameworks.

Shapes are neutral (`compare.base.interface`): images NHWC, convolution kernels HWIO, a transposed convolution's HWOI,
dense kernels [inputs, outputs]. A layer is a module that holds parameters or buffers and no sub-modules. A module with
parameters of its own beside its sub-modules is a layer as well.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

IMAGES = ""
"""Stands among the layers that a layer comes after for the images themselves."""

ROLES = (
    "convolution",
    "transposed-convolution",
    "dense",
    "batch-norm",
    "layer-norm",
    "group-norm",
    "embedding",
    "parameters",
)

PRODUCTS = ("convolution", "transposed-convolution", "dense")
"""The roles of layers with a kernel."""

VARIABLES = ("kernel", "embedding", "scale", "bias", "mean", "var")
"""The roles of the variables of known layers, in the order of a layer's variables."""

NORMS: Mapping[frozenset[str], str] = {
    frozenset("C"): "layer-norm",
    frozenset("S"): "group-norm",
    frozenset("SC"): "group-norm",
    frozenset("NS"): "batch-norm",
    frozenset("N"): "batch-norm",
}
"""The roles of norms by the axes that they reduce: N for the batch, S for positions, C for channels."""


@dataclass(frozen=True)
class Layout:
    """How an activation comes into the neutral order: its axes first, then the features of its last axis.

    Attributes:
        axes: the activation's axes in neutral order. Empty: the layer's kind tells them.
        features: the indices of the last axis in neutral order. Empty: they are in it.
    """

    axes: tuple[int, ...] = ()
    features: tuple[int, ...] = ()


AS_IT_IS = Layout()
"""The layout of an activation in neutral order."""


@dataclass(frozen=True)
class Variable:
    """One parameter or buffer.

    Attributes:
        own: its name in the user's model: torch's state-dict name (`layer1.0.conv1.weight`), or flax's collection and
            path joined by slashes (linen `params/Block_0/Conv_0/kernel`, nnx the same with `/` between attributes).
        role: `kernel`, `bias`, `scale`, `mean`, `var`, `embedding` or, of no known layer, `gamma` (one axis longer than
            1 at most) or `free`.
        shape: neutral; axes of length 1 are left out of a `gamma`.
        is_parameter: whether it is trained.
        orders: for each axis of `shape` its indices in neutral order, empty where they are in it. An empty tuple
            stands for all axes.
        axes: the variable's own axes in neutral order. Empty: the kind of its module tells them.
        use: `scale` or `bias` of a variable of no known layer that multiplies or is added, else empty.
        moment: a number that grows with the time of its first use with data, 0 if that is unknown.
    """

    own: str
    role: str
    shape: tuple[int, ...]
    is_parameter: bool
    orders: tuple[tuple[int, ...], ...] = ()
    axes: tuple[int, ...] = ()
    use: str = ""
    moment: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Layer:
    """One call of a layer, in execution order.

    Attributes:
        path: the layer's name in the user's model, dotted in torch, joined by slashes in flax; a second call in the
            same pass has `#2` at its end, and no variables.
        role: one of `ROLES`.
        variables: kernel before bias; scale, bias, mean, var.
        settings: what decides its arithmetic, in torch's conventions, only what its role has: `kernel`, `stride`,
            `dilation` ([height, width]), `padding` ([[top, bottom], [left, right]], as it comes out for this input),
            `padding_mode` (`zeros` or its own name), `groups`, `output_padding`; `epsilon`; `momentum` (the weight of
            the new batch; None: a cumulative average); `running_variance` (`biased` or `unbiased`); `statistics`
            (`batch` or `running`, used in the traced training pass); `fast_variance` (E[x^2] - E[x]^2).
        written: settings as the user's framework writes them, where that is not how they stand in `settings`
            (`{"padding": "SAME", "momentum": 0.9}`).
        input_layout, output_layout: how the recorded input and output come into the neutral order.
        is_module: whether it is a whole module. Otherwise it is an operation, with the path of its first variable.
        inside: how many other layers are called within it.
        is_recorded: whether its input and output are compared. Parts of an attention have none on both sides.
        is_looped: whether a loop of the framework, such as `nn.scan`, calls it. The program then has it once.
        input, output: shapes for the traced batch, [N, H, W, C] or [N, F] (others as they are).
        after: paths of the nearest layers whose outputs reach its input, in execution order, `IMAGES` for the images.
        between: the functions between those and this layer, in words that both frameworks share: `relu`, `relu6`,
            `gelu(exact)`, `gelu(tanh)`, `silu`, `max-pool(kernel, stride, padding)`, `average-pool(...)`, `mean`,
            `add`, `multiply`, `multiply by 0.125`, `concatenate`, `reshape`, ...; what has no shared name stands under
            the framework's.
        last, until_end: as `after` and `between`, of its result, for free parameters. Layers inside count, too.
        applied: the functions of its result and of no other layer's.
    """

    path: str
    role: str
    variables: tuple[Variable, ...]
    settings: Mapping[str, Any]
    input: tuple[int, ...]
    output: tuple[int, ...]
    after: tuple[str, ...]
    between: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict[str, Any])
    input_layout: Layout = AS_IT_IS
    output_layout: Layout = AS_IT_IS
    is_module: bool = True
    inside: int = 0
    is_recorded: bool = True
    is_looped: bool = False
    last: tuple[str, ...] = ()
    until_end: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One model's pass over a batch, in training.

    Attributes:
        framework: `flax.linen`, `flax.nnx` or `torch`.
        layers: in execution order.
        output: shape of the first output, such as logits.
        after, between: as a layer's, of the logits.
        unused: own names of parameters and buffers that the pass did not reach.
        dropout: paths of dropout layers, whose rate samestep sets to 0.
        source_sha256: of the file that defines the factory.
        notes: what a reader should know: the factory printed, imported the other framework, ...
        constants: own names of buffers that the pass has not changed.
        outputs: shape of every output by its name or place in the result, in the framework's own order of axes.
        reused: own names of parameters that functions outside of their layer use, too.
    """

    framework: str
    layers: tuple[Layer, ...]
    output: tuple[int, ...]
    after: tuple[str, ...]
    between: tuple[str, ...]
    unused: tuple[str, ...]
    dropout: tuple[str, ...]
    source_sha256: str
    notes: tuple[str, ...] = ()
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    constants: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types. `from_json` is the inverse."""
        return asdict(self)


def from_json(values: Mapping[str, Any]) -> Trace:
    """Return the trace of what `Trace.to_json` gave, by way of JSON or not."""
    made = dict(values)
    made |= {key: tuple(values[key]) for key in ("output", "after", "between", "unused", "dropout", "notes")}
    made["outputs"] = {name: tuple(shape) for name, shape in values.get("outputs", {}).items()}
    made |= {key: tuple(values.get(key, ())) for key in ("constants", "reused")}
    made["layers"] = tuple(_layer(each) for each in values["layers"])
    return Trace(**made)


def _layer(values: Mapping[str, Any]) -> Layer:
    made = dict(values)
    made |= {key: tuple(values[key]) for key in ("input", "output", "after", "between", "last", "until_end", "applied")}
    made["variables"] = tuple(_variable(each) for each in values["variables"])
    made |= {key: read_layout(values[key]) for key in ("input_layout", "output_layout") if key in values}
    return Layer(**made)


def read_layout(values: Mapping[str, Any]) -> Layout:
    """Return the layout that JSON describes."""
    return Layout(tuple(values["axes"]), tuple(values["features"]))


def _variable(values: Mapping[str, Any]) -> Variable:
    made = dict(values)
    made["shape"] = tuple(values["shape"])
    made["orders"] = tuple(tuple(order) for order in values.get("orders", ()))
    made["axes"] = tuple(values.get("axes", ()))
    return Variable(**made)


FACTOR = "multiply by "
"""The beginning of the word for a product with a constant number, which follows."""


def name_factor(value: float) -> str:
    """Return the word for a product with a constant. Six digits are those of float32."""
    return f"{FACTOR}{value:.6g}"


PADDING = "pad by "
"""The beginning of the word for zeros around positions. The numbers before and after each axis follow."""


BY_A_FUNCTION = "by a function before it"
"""How the padding of a convolution is written, if no setting of it has it."""


def name_padding(edges: Sequence[Sequence[int]]) -> str:
    """Return the word for zeros around positions."""
    return f"{PADDING}{[[int(size) for size in each] for each in edges]}"


def take_padding(layer: Layer) -> Layer:
    """Return a convolution with the zeros that a function pads right before it as its own."""
    word = layer.between[-1] if layer.between else ""
    if layer.role != "convolution" or not word.startswith(PADDING):
        return layer
    settings = add_padding(layer.settings, json.loads(word.removeprefix(PADDING)))
    written = {**layer.written, "padding": BY_A_FUNCTION}
    between = layer.between[:-1]
    return replace(layer, settings=settings, written=written, between=between, is_module=False, is_recorded=False)


def add_padding(settings: Mapping[str, Any], edges: Sequence[Sequence[int]]) -> Mapping[str, Any]:
    """Return a convolution's settings with more zeros before and after each axis."""
    if len(edges) != len(settings.get("padding", ())):
        return settings
    pairs = zip(settings["padding"], edges, strict=True)
    return {**settings, "padding": [[first + before, last + after] for (first, last), (before, after) in pairs]}


def number_call(path: str, earlier: Collection[str]) -> str:
    """Return a layer's path, with `#2` at its end for its second call in a pass, and so on.

    `earlier` are the results for the earlier calls.
    """
    if path not in earlier:
        return path
    calls = 1 + sum(name.partition("#")[0] == path for name in earlier)
    return f"{path}#{calls}"
