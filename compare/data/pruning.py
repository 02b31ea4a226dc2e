"""Structured pruning: remove whole channels from a built-in model, the same ones in every backend.

A layer's channels form a group. Layers that a residual sum or a depthwise convolution joins share one group. Each group
keeps the same part of its channels, rounded to a multiple. The channels with the largest score stay (Li et al. 2017,
Pruning Filters for Efficient ConvNets; Liu et al. 2017, Network Slimming). The removed channels are the same in every
backend, because scores and ties are decided here.

Layer norm divides by the deviation over all channels, so a group that it normalises stays whole.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compare.base.errors import Refused
from compare.base.interface import Array, Arrays, is_buffer
from compare.base.workloads import PAIR, ModelSpec

SCORES = ("kernels", "batch-norm")
"""`kernels` is the sum of the absolute kernel elements of a channel, `batch-norm` the absolute scale."""

Shapes = Mapping[str, tuple[int, ...]]
_OUTPUT = "classes"


@dataclass(frozen=True)
class Channels:
    """The channels that a sum or a depthwise convolution joins. Groups are equal if their names are equal."""

    name: str
    count: int


@dataclass(frozen=True)
class Layer:
    """A layer with parameters.

    Attributes:
        path: its dotted path in both twins.
        outputs: the group of its output channels.
        inputs: the groups of its input channels, concatenated; empty for a depthwise convolution and a norm.
        size: height and width of its kernel in pixels.
        pixels: the output pixels that each image has; the input pixels of a transposed convolution.
        repeats: how often all input channels come again in the input, as they do after a flatten.
        is_transposed: whether its kernel is [height, width, outputs, inputs].
        is_norm: whether it is a norm or a layer scale, which has no kernel.
        vectors: the parameters for each output channel beside the kernel: a bias, a scale, or both.
    """

    path: str
    outputs: Channels
    inputs: tuple[Channels, ...] = ()
    size: int = 1
    pixels: int = 1
    repeats: int = 1
    is_transposed: bool = False
    is_norm: bool = False
    vectors: int = 1

    @property
    def operations(self) -> int:
        """The multiplications of one image's forward pass. Each comes with an addition."""
        return self.pixels * self._kernel

    @property
    def parameters(self) -> int:
        """The elements of its kernel, bias and scale."""
        return self._kernel + self.vectors * self.outputs.count

    @property
    def _kernel(self) -> int:
        if self.is_norm:
            return 0
        inputs = self.repeats * sum(group.count for group in self.inputs) if self.inputs else 1
        return self.size**2 * inputs * self.outputs.count


def prune(model: ModelSpec, ratio: float, round_to: int, score: str) -> ModelSpec:
    """Return the model with `ratio` of the channels of each group removed.

    A group keeps the multiple of `round_to` that is nearest to its share, and at least one multiple. In MobileNet, a
    width that would become its neighbour's keeps one multiple more, because equal widths would add a residual sum.

    Raises:
        Refused: the model is a user's own, or the narrower model would have other layers or sums.
    """
    if model.family == PAIR:
        raise Refused("--prune of models of your own is not supported; allowed: a workload of `samestep workloads`")
    arguments = dict(model.arguments)

    def narrow(width: int) -> int:
        return min(width, max(round_to, round_to * math.floor(width * (1 - ratio) / round_to + 0.5)))

    narrowed = replace(
        model,
        arguments=_NARROW[model.family](arguments, narrow),
        pruned={"arguments": arguments, "ratio": ratio, "round_to": round_to, "score": score},
    )
    if [_topology(layer) for layer in layers(narrowed)] != [_topology(layer) for layer in layers(model)]:
        raise Refused(
            f"--prune {ratio:g} with --round-to {round_to} makes two different widths equal, which changes the model; "
            "allowed: a smaller ratio or a smaller multiple"
        )
    return narrowed


def full(model: ModelSpec) -> ModelSpec:
    """Return the model that a pruned model was cut from."""
    return replace(model, arguments=model.pruned["arguments"], pruned={})


def layers(model: ModelSpec) -> list[Layer]:
    """Return all layers with parameters, in the order of the forward pass."""
    return list(_LAYERS[model.family](model.image, model.classes, **model.arguments))


def count_operations(model: ModelSpec) -> int:
    """Return the multiplications of convolutions and products in one image's forward pass."""
    return sum(layer.operations for layer in layers(model))


def count_parameters(model: ModelSpec) -> int:
    """Return the number of parameters, without buffers."""
    return sum(layer.parameters for layer in layers(model))


def fill(model: ModelSpec, shapes: Shapes, initial: Callable[[Shapes], Arrays]) -> Arrays:
    """Return the values of a model's parameters and buffers. `initial` gives those of a model that is not pruned.

    A pruned model gets the values of the full model without the removed channels.
    """
    if not model.pruned:
        return initial(shapes)
    values = initial(full_shapes(model, shapes))
    return cut(model, values, choose_channels(model, values))


def full_shapes(model: ModelSpec, shapes: Shapes) -> Shapes:
    """Return the shapes of the full model's parameters and buffers, given those of the pruned model."""
    find = _make_finder(model)
    return {name: _full_shape(find(name), shape) for name, shape in shapes.items()}


def choose_channels(model: ModelSpec, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the indices of the channels that stay, ascending, for each group that loses some.

    `values` are those of the full model. Scores are float64 sums over all layers that write to the group. The lower
    index wins a tie.
    """
    widths = {layer.outputs.name: layer.outputs.count for layer in layers(model)}
    totals = dict[str, Array]()
    for layer in layers(full(model)):
        group = layer.outputs
        if widths[group.name] < group.count:
            scores = _score(layer, values, model.pruned["score"])
            totals[group.name] = totals.get(group.name, np.zeros(group.count)) + scores
    return {name: np.sort(np.argsort(-scores, kind="stable")[: widths[name]]) for name, scores in totals.items()}


def cut(model: ModelSpec, values: Mapping[str, Array], kept: Mapping[str, Array]) -> Arrays:
    """Return the full model's `values` without the channels that are not `kept`."""
    find = _make_finder(model)
    return {name: _cut(find(name), array, kept) for name, array in values.items()}


def mask(model: ModelSpec, values: Mapping[str, Array], kept: Mapping[str, Array]) -> Arrays:
    """Return the full model's `values` with zeros wherever a removed channel is written.

    Kernels, biases and scales of a removed channel are zero, so its activations are zero in every layer. The network
    then computes what the pruned network computes.
    """
    find, masked = _make_finder(model), dict(values)
    for name, array in values.items():
        layer = find(name)
        if layer.outputs.name in kept and not is_buffer(name):
            keep = np.zeros(layer.outputs.count)
            keep[kept[layer.outputs.name]] = 1
            masked[name] = array * (keep[:, None] if layer.is_transposed and array.ndim > 1 else keep)
            # On the axis of the inputs nothing needs to be zero, because the inputs are.
    return masked


def _make_finder(model: ModelSpec) -> Callable[[str], Layer]:
    """Return a function that finds the full model's layer of a parameter or buffer by its name."""
    by_path = {layer.path: layer for layer in layers(full(model))}
    return lambda name: by_path[name.rpartition(".")[0]]


def _topology(layer: Layer) -> tuple[Any, ...]:
    return layer.path, layer.outputs.name, tuple(group.name for group in layer.inputs), layer.size, layer.pixels


def _score(layer: Layer, values: Mapping[str, Array], score: str) -> Array:
    if score == "batch-norm":
        return np.abs(values.get(f"{layer.path}.scale", np.zeros(layer.outputs.count)))
    kernel = values.get(f"{layer.path}.kernel")
    if kernel is None:
        return np.zeros(layer.outputs.count)
    axis = kernel.ndim - (2 if layer.is_transposed else 1)
    return np.abs(kernel.astype(np.float64)).sum(tuple(other for other in range(kernel.ndim) if other != axis))


def _full_shape(layer: Layer, shape: tuple[int, ...]) -> tuple[int, ...]:
    outputs = layer.outputs.count
    if len(shape) == 1:
        return (outputs,)
    inputs = layer.repeats * sum(group.count for group in layer.inputs) if layer.inputs else 1
    return (*shape[:-2], outputs, inputs) if layer.is_transposed else (*shape[:-2], inputs, outputs)


def _cut(layer: Layer, array: Array, kept: Mapping[str, Array]) -> Array:
    written = kept.get(layer.outputs.name, np.arange(layer.outputs.count))
    if array.ndim == 1:
        return array[written]
    outputs, inputs = (array.ndim - 2, array.ndim - 1) if layer.is_transposed else (array.ndim - 1, array.ndim - 2)
    array = array.take(written, outputs)
    if not layer.inputs:
        return array
    read, start = list[Array](), 0
    for _ in range(layer.repeats):
        for group in layer.inputs:
            read.append(start + kept.get(group.name, np.arange(group.count)))
            start += group.count
    return array.take(np.concatenate(read), inputs)


# The layers of each family, as its twins in both backends build them.


def _half(size: int) -> int:
    return -(-size // 2)


def _simple(image: tuple[int, int, int], classes: int, *, features: int) -> Iterator[Layer]:
    height, width, channels = image
    conv = Channels("conv", features)
    yield Layer("conv", conv, (Channels("image", channels),), 3, height * width)
    yield Layer("dense", Channels(_OUTPUT, classes), (conv,), repeats=(height // 2) * (width // 2))


def _staged(image: tuple[int, int, int], classes: int, *, widths: Sequence[int]) -> Iterator[Layer]:
    height, width, channels = image
    inputs = Channels("image", channels)
    for index in range(2 * len(widths)):
        if index and index % 2 == 0:
            height, width = height // 2, width // 2
        outputs = Channels(f"blocks.{index}", widths[index // 2])
        yield Layer(f"blocks.{index}.conv", outputs, (inputs,), 3, height * width, vectors=0)
        yield Layer(f"blocks.{index}.norm", outputs, is_norm=True, vectors=2)
        inputs = outputs
    yield Layer("dense", Channels(_OUTPUT, classes), (inputs,))


def _resnet(
    image: tuple[int, int, int],
    classes: int,
    *,
    block: str,
    depths: Sequence[int],
    widths: Sequence[int],
    stem: str,
    outer: Sequence[int] = (),
) -> Iterator[Layer]:
    height, width, channels = image
    large = stem == "imagenet"
    if large:
        height, width = _half(height), _half(width)
    inputs = Channels("stem", widths[0])
    yield from _conv_norm("stem", (Channels("image", channels),), inputs, 7 if large else 3, height * width)
    if large:
        height, width = _half(height), _half(width)
    number = 0
    for stage, (depth, inner) in enumerate(zip(depths, widths, strict=True)):
        for index in range(depth):
            path, before = f"blocks.{number}", height * width
            stride = 2 if stage and index == 0 else 1
            if stride == 2:
                height, width = _half(height), _half(width)
            pixels = height * width
            count = outer[stage] if outer else inner * (1 if block == "basic" else 4)
            projects = stride != 1 or inputs.count != count
            outputs = Channels(f"stage{stage}", count) if projects else inputs
            first = Channels(f"{path}.first", inner)
            if block == "basic":
                yield from _conv_norm(f"{path}.first", (inputs,), first, 3, pixels)
                yield from _conv_norm(f"{path}.last", (first,), outputs, 3, pixels)
            else:
                middle = Channels(f"{path}.middle", inner)
                yield from _conv_norm(f"{path}.first", (inputs,), first, 1, before)
                yield from _conv_norm(f"{path}.middle", (first,), middle, 3, pixels)
                yield from _conv_norm(f"{path}.last", (middle,), outputs, 1, pixels)
            if projects:
                yield from _conv_norm(f"{path}.shortcut", (inputs,), outputs, 1, pixels)
            inputs, number = outputs, number + 1
    yield Layer("dense", Channels(_OUTPUT, classes), (inputs,))


def _convnext(
    image: tuple[int, int, int],
    classes: int,
    *,
    depths: Sequence[int],
    widths: Sequence[int],
    hidden: Sequence[int] = (),
) -> Iterator[Layer]:
    height, width, channels = image
    height, width, number = height // 4, width // 4, 0
    inputs = Channels("stage0", widths[0])
    yield Layer("stem", inputs, (Channels("image", channels),), 4, height * width)
    yield Layer("stem_norm", inputs, is_norm=True, vectors=2)
    for stage, (depth, count) in enumerate(zip(depths, widths, strict=True)):
        if count != inputs.count:
            height, width = height // 2, width // 2
            yield Layer(f"blocks.{number}.norm", inputs, is_norm=True, vectors=2)
            outputs = Channels(f"stage{stage}", count)
            yield Layer(f"blocks.{number}.conv", outputs, (inputs,), 2, height * width)
            inputs, number = outputs, number + 1
        for _ in range(depth):
            path, pixels = f"blocks.{number}", height * width
            inner = Channels(f"{path}.expand", hidden[stage] if hidden else 4 * count)
            yield Layer(f"{path}.depthwise", inputs, (), 7, pixels)
            yield Layer(f"{path}.norm", inputs, is_norm=True, vectors=2)
            yield Layer(f"{path}.expand", inner, (inputs,), 1, pixels)
            yield Layer(f"{path}.reduce", inputs, (inner,), 1, pixels)
            yield Layer(f"{path}.layer_scale", inputs, is_norm=True)
            number += 1
    yield Layer("norm", inputs, is_norm=True, vectors=2)
    yield Layer("dense", Channels(_OUTPUT, classes), (inputs,))


def _vgg(
    image: tuple[int, int, int], classes: int, *, depths: Sequence[int], widths: Sequence[int], hidden: Sequence[int]
) -> Iterator[Layer]:
    height, width, channels = image
    inputs = Channels("image", channels)
    for stage, (depth, count) in enumerate(zip(depths, widths, strict=True)):
        for index in range(depth):
            path = f"stages.{stage}.convs.{index}"
            outputs = Channels(path, count)
            yield Layer(path, outputs, (inputs,), 3, height * width)
            inputs = outputs
        height, width = height // 2, width // 2
    repeats = height * width
    for index, count in enumerate(hidden):
        outputs = Channels(f"hidden.{index}", count)
        yield Layer(f"hidden.{index}", outputs, (inputs,), repeats=repeats)
        inputs, repeats = outputs, 1
    yield Layer("dense", Channels(_OUTPUT, classes), (inputs,), repeats=repeats)


def _mobilenet(
    image: tuple[int, int, int],
    classes: int,
    *,
    stem: int,
    stages: Sequence[tuple[int, int, int, int]],
    head: int,
    inner: Sequence[int] = (),
) -> Iterator[Layer]:
    height, width, channels = image
    height, width = _half(height), _half(width)
    inputs, number = Channels("stem", stem), 0
    yield from _conv_norm("stem", (Channels("image", channels),), inputs, 3, height * width)
    for stage, (expansion, count, depth, first) in enumerate(stages):
        for index in range(depth):
            path, before, stride = f"blocks.{number}", height * width, 1 if index else first
            if stride == 2:
                height, width = _half(height), _half(width)
            pixels, middle = height * width, inputs
            if expansion != 1:
                middle = Channels(f"{path}.expand", inner[number] if inner else inputs.count * expansion)
                yield from _conv_norm(f"{path}.expand", (inputs,), middle, 1, before)
            yield from _conv_norm(f"{path}.depthwise", (), middle, 3, pixels)
            adds = stride == 1 and inputs.count == count
            outputs = inputs if adds else Channels(f"stage{stage}", count)
            yield from _conv_norm(f"{path}.project", (middle,), outputs, 1, pixels)
            inputs, number = outputs, number + 1
    outputs = Channels("head", head)
    yield from _conv_norm("head", (inputs,), outputs, 1, height * width)
    yield Layer("dense", Channels(_OUTPUT, classes), (outputs,))


def _unet(image: tuple[int, int, int], classes: int, *, widths: Sequence[int]) -> Iterator[Layer]:
    height, width, channels = image
    inputs, skips = Channels("image", channels), list[Channels]()

    def convolve(path: str, inputs: tuple[Channels, ...], count: int, pixels: int) -> Iterator[Layer]:
        first, last = Channels(f"{path}.first", count), Channels(f"{path}.last", count)
        yield from _conv_norm(f"{path}.first", inputs, first, 3, pixels)
        yield from _conv_norm(f"{path}.last", (first,), last, 3, pixels)

    for index, count in enumerate(widths):
        if index:
            height, width = height // 2, width // 2
        yield from convolve(f"down.{index}", (inputs,), count, height * width)
        inputs = Channels(f"down.{index}.last", count)
        skips.append(inputs)
    skips.pop()
    for index, count in enumerate(widths[-2::-1]):
        enlarged = Channels(f"up.{index}.enlarge", count)
        yield Layer(f"up.{index}.enlarge", enlarged, (inputs,), 2, height * width, is_transposed=True)
        skip = skips.pop()
        size = 2 ** len(skips)
        height, width = image[0] // size, image[1] // size
        yield from convolve(f"up.{index}.convs", (skip, enlarged), count, height * width)
        inputs = Channels(f"up.{index}.convs.last", count)
    yield Layer("pointwise", Channels(_OUTPUT, classes), (inputs,), 1, height * width)


def _conv_norm(path: str, inputs: tuple[Channels, ...], outputs: Channels, size: int, pixels: int) -> Iterator[Layer]:
    yield Layer(f"{path}.conv", outputs, inputs, size, pixels, vectors=0)
    yield Layer(f"{path}.norm", outputs, is_norm=True, vectors=2)


_LAYERS: Mapping[str, Callable[..., Iterator[Layer]]] = {
    "simple": _simple,
    "staged": _staged,
    "resnet": _resnet,
    "convnext": _convnext,
    "vgg": _vgg,
    "mobilenet": _mobilenet,
    "unet": _unet,
}

# The arguments of the narrower model of each family.

Narrow = Callable[[int], int]
_Arguments = Mapping[str, Any]


def _narrow_named(*names: str) -> Callable[[_Arguments, Narrow], dict[str, Any]]:
    def narrow_arguments(arguments: _Arguments, narrow: Narrow) -> dict[str, Any]:
        values = {name: arguments[name] for name in names}
        narrowed = {
            name: narrow(value) if isinstance(value, int) else tuple(map(narrow, value))
            for name, value in values.items()
        }
        return {**arguments, **narrowed}

    return narrow_arguments


def _narrow_resnet(arguments: _Arguments, narrow: Narrow) -> dict[str, Any]:
    times = 1 if arguments["block"] == "basic" else 4
    widths = arguments["widths"]
    outer = tuple(narrow(times * width) for width in widths)
    return {**arguments, "widths": tuple(map(narrow, widths)), "outer": outer}


def _narrow_convnext(arguments: _Arguments, narrow: Narrow) -> dict[str, Any]:
    return {**arguments, "hidden": tuple(narrow(4 * width) for width in arguments["widths"])}


def _narrow_mobilenet(arguments: _Arguments, narrow: Narrow) -> dict[str, Any]:
    inner, inputs = list[int](), arguments["stem"]
    for expansion, width, depth, _ in arguments["stages"]:
        for _ in range(depth):
            inner.append(narrow(inputs * expansion))
            inputs = width
    narrowed = _narrow_named("stem", "head")(arguments, narrow)
    stages, before, width_before = list[tuple[int, int, int, int]](), 0, arguments["stem"]
    for index, (expansion, width, depth, stride) in enumerate(arguments["stages"]):
        now = narrow(width)
        if stride == 1 and width != width_before:  # equal widths would add a residual sum
            if index == 0 and width < width_before:
                narrowed["stem"] = _narrow_apart(width_before, now, narrow)
            elif index and width > width_before:
                now = _narrow_apart(width, before, narrow)
        stages.append((expansion, now, depth, stride))
        before, width_before = now, width
    return {**narrowed, "stages": tuple(stages), "inner": tuple(inner)}


def _narrow_apart(width: int, other: int, narrow: Narrow) -> int:
    """Return the narrower width, and one multiple more if it would be equal to the `other` one."""
    narrowed, wider = narrow(width), width
    while narrowed == other and narrowed < width:
        wider += 1
        narrowed = min(width, narrow(wider))
    return narrowed


_NARROW: Mapping[str, Callable[[_Arguments, Narrow], dict[str, Any]]] = {
    "simple": _narrow_named("features"),
    "staged": _narrow_named("widths"),
    "resnet": _narrow_resnet,
    "convnext": _narrow_convnext,
    "vgg": _narrow_named("widths", "hidden"),
    "mobilenet": _narrow_mobilenet,
    "unet": _narrow_named("widths"),
}
