"""Match the layers of two traces by their kind and by the matched layers before them.

Two layers match if their roles and variable shapes are equal and they come after the same matched layers. The order in
which branches run does not matter. If several layers fit, the layers behind them decide, then their settings, and then
the activations behind them. Names decide last.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from compare.base.trace import IMAGES, Layer, Trace, Variable

_LOOK_AHEAD = 8
_DISTINCTIVE_SETTINGS = ("kernel", "stride", "dilation", "groups", "padding", "output_padding", "epsilon", "momentum")

ACTIVATION = re.compile(
    r"relu6?|leaky-relu|elu|selu|celu|silu|mish|gelu\((tanh|exact)\)|(log)?sigmoid|tanh|softplus|(log_)?softmax|"
    r"hard(swish|sigmoid|tanh)"
)

Kind = tuple[Hashable, ...]
Group = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Alignment:
    """Matched layers, and groups of layers that nothing tells apart.

    Attributes:
        pairs: torch path to flax path.
        ambiguous: torch paths and flax paths of each group.
    """

    pairs: Mapping[str, str]
    ambiguous: tuple[Group, ...]


def split_call(path: str) -> tuple[str, str]:
    """Return the path of a layer's first call, and the number of this call: `""`, `"2"`, `"3"`, ..."""
    first, _, call = path.partition("#")
    return first, call


def find_matching_shape(layer: Layer, variable: Variable) -> tuple[int, ...]:
    """Return the shape by which a variable is matched.

    A free parameter loses its axes of length 1. A kernel of length 1 becomes [inputs, outputs].
    """
    shape = variable.shape
    if layer.role == "parameters":
        return tuple(length for length in shape if length != 1)
    if variable.role == "kernel" and _role(layer) == "dense":
        return shape[-2:]
    return shape


def find_kind(layer: Layer) -> Kind:
    """Return role and variable shapes. Layers of one kind can hold the same weights."""
    is_free = layer.role == "parameters"
    variables = [
        ("" if is_free else variable.role, find_matching_shape(layer, variable), variable.is_parameter)
        for variable in layer.variables
    ]
    return (_role(layer), *sorted(variables))


def align(torch: Trace, jax: Trace, fixed: Mapping[str, str]) -> Alignment:
    """Match as many layers as possible.

    A layer behind an unmatched layer stays unmatched too, unless it is fixed.

    Args:
        torch: torch's trace.
        jax: flax's trace.
        fixed: torch path to flax path of layers that are matched already.
    """
    numbers = dict[Hashable, int]()
    torch_side, jax_side = _Side(torch, numbers), _Side(jax, numbers)
    pairs = {IMAGES: IMAGES} | dict(fixed)
    candidates = defaultdict[Hashable, list[str]](list)
    fixed_in_jax = set(fixed.values())
    for layer in jax.layers:
        if layer.path not in fixed_in_jax:
            candidates[jax_side.key(layer, lambda path: path)].append(layer.path)
    groups = defaultdict[Hashable, list[str]](list)
    for layer in torch.layers:
        if layer.path not in fixed:
            groups[torch_side.key(layer, lambda path: path)].append(layer.path)
    ambiguous: list[Group] = []
    for group in groups.values():  # in the order of first layers, so the layers before them are matched already
        layer = torch_side.layers[group[0]]
        first, call = split_call(layer.path)
        if not {*layer.after, *([first] if call else [])} <= pairs.keys():
            continue
        matched, undecided = _match_group(
            group, candidates[torch_side.key(layer, pairs.__getitem__)], (torch_side, jax_side)
        )
        pairs |= matched
        ambiguous += undecided
    return Alignment({t: j for t, j in pairs.items() if t != IMAGES}, tuple(ambiguous))


def match_in_order(torch: Sequence[Layer], jax: Sequence[Layer]) -> dict[str, str] | None:
    """Match layers one by one in execution order. Return None unless both sides have the same kinds in that order."""
    kinds = [[_kind_with_call(layer, side) for layer in side] for side in (torch, jax)]
    if kinds[0] != kinds[1]:
        return None
    return {t.path: j.path for t, j in zip(torch, jax, strict=True)}


def _kind_with_call(layer: Layer, side: Sequence[Layer]) -> Kind:
    first, call = split_call(layer.path)
    if not call:
        return find_kind(layer)
    return ("again", call, next((index for index, other in enumerate(side) if other.path == first), -1))


def _role(layer: Layer) -> str:
    """Return the role. A convolution of length 1 counts as `dense`, because a model may use either."""
    kernel = next((variable.shape for variable in layer.variables if variable.role == "kernel"), ())
    pointwise = layer.role == "convolution" and set(kernel[:-2]) == {1} and layer.settings.get("groups", 1) == 1
    return "dense" if pointwise else layer.role


def _match_by_name(torch: Sequence[str], jax: Sequence[str]) -> dict[str, str]:
    """Match layers by the last names in their paths, or by the numbers if nothing else differs.

    Return no pairs if some layer has no such partner. Numbers must grow in execution order.
    """
    leaves = [{re.split(r"[./]", path)[-1].lower(): path for path in side} for side in (torch, jax)]
    if leaves[0].keys() == leaves[1].keys() and len(leaves[0]) == len(torch) == len(jax):
        return {path: leaves[1][leaf] for leaf, path in leaves[0].items()}
    numbers = [[list(map(int, re.findall(r"\d+", path))) for path in side] for side in (torch, jax)]
    patterns = [{re.sub(r"\d+", "", path) for path in side} for side in (torch, jax)]
    is_numbered = all(each == sorted(each) for each in numbers) and all(len(each) == 1 for each in patterns)
    return dict(zip(torch, jax, strict=True)) if is_numbered and len(torch) == len(jax) else {}


_ATTENTION_PARTS = {
    **dict.fromkeys(("q", "wq", "query", "queries"), "query"),
    **dict.fromkeys(("k", "wk", "key", "keys"), "key"),
    **dict.fromkeys(("v", "wv", "value", "values"), "value"),
}


def _attention_part(path: str) -> str:
    """Return which part of an attention the last name of a layer's path says, or "" for none.

    Query and key have the same shapes and neighbours, so only their names tell them apart.
    """
    words = re.split(r"[_\d]+", re.split(r"[./]", split_call(path)[0])[-1].lower())
    return next((_ATTENTION_PARTS[word] for word in words if word in _ATTENTION_PARTS), "")


class _Side:
    """One trace, with labels that tell its layers apart. Equal labels have equal numbers on both sides."""

    def __init__(self, trace: Trace, numbers: dict[Hashable, int]) -> None:
        self.layers = {layer.path: layer for layer in trace.layers}
        self._kinds: dict[str, Hashable] = {}
        followers = defaultdict[str, list[str]](list)
        for layer in trace.layers:
            first, call = split_call(layer.path)
            self._kinds[layer.path] = (bool(call), find_kind(self.layers.get(first, layer)))
            for path in self._look_inside(layer.after):
                followers[path].append(layer.path)
        ends = set(trace.after)

        def number(path: str, ahead: Mapping[str, int]) -> int:
            label = (self._kinds[path], path in ends, *sorted(ahead.get(each, 0) for each in followers[path]))
            return numbers.setdefault(label, len(numbers) + 1)

        self._ahead = [{path: number(path, {}) for path in self.layers}]
        for _ in range(_LOOK_AHEAD):
            nearer = self._ahead[-1]
            self._ahead.append({path: number(path, nearer) for path in self.layers})
        to_the_end: dict[str, int] = {}
        for path in reversed(self.layers):
            to_the_end[path] = number(path, to_the_end)
        self._ahead.append(to_the_end)

    def _look_inside(self, paths: Sequence[str]) -> set[str]:
        """Return these layers, and the last ones inside those that hold free parameters alone."""
        found, waiting = set[str](), list(paths)
        while waiting:
            path = waiting.pop()
            layer = self.layers.get(path)
            if layer is not None and layer.role == "parameters" and layer.inside and path not in found:
                waiting += layer.last
            found.add(path)
        return found

    def key(self, layer: Layer, name: Callable[[str], str]) -> Hashable:
        """Return the value that is equal for two layers that match. `name` gives the name of a matched layer."""
        first, call = split_call(layer.path)
        kind = ("again", call, name(first)) if call else find_kind(layer)
        return kind, frozenset(name(path) for path in layer.after)

    def labels(self, path: str) -> list[Hashable]:
        """Return labels that may tell a layer from others of the same key, the most decisive first."""
        layer = self.layers[path]
        settings = tuple((name, repr(layer.settings.get(name))) for name in _DISTINCTIVE_SETTINGS)
        ahead = (numbers[path] for numbers in self._ahead)
        functions = tuple(sorted(layer.between)), tuple(sorted(word.partition("(")[0] for word in layer.between))
        activations = tuple(sorted(word for word in layer.applied if ACTIVATION.fullmatch(word)))
        return [layer.role, *ahead, settings, layer.output[1:], *functions, activations, _attention_part(path)]


Labels = Mapping[str, list[Hashable]]
Split = tuple[dict[str, str], list[Group]]


def _match_group(torch: Sequence[str], jax: Sequence[str], sides: tuple[_Side, _Side]) -> Split:
    """Match two groups with the same key. Return the pairs, and the groups that nothing tells apart."""
    if len(torch) == len(jax) == 1:
        return {torch[0]: jax[0]}, []
    labels = [{path: side.labels(path) for path in group} for side, group in zip(sides, (torch, jax), strict=True)]
    return _split_by_labels(list(torch), list(jax), labels, 0)


def _split_by_labels(torch: list[str], jax: list[str], labels: Sequence[Labels], level: int) -> Split:
    if not torch or not jax:
        return {}, []
    if len(torch) == len(jax) == 1:
        return {torch[0]: jax[0]}, []
    if level == len(labels[0][torch[0]]):
        pairs = _match_by_name(torch, jax)
        return pairs, [] if pairs else [(tuple(torch), tuple(jax))]
    groups = defaultdict[Hashable, tuple[list[str], list[str]]](lambda: ([], []))
    for side, paths in enumerate((torch, jax)):
        for path in paths:
            groups[labels[side][path][level]][side].append(path)
    pairs, ambiguous = dict[str, str](), list[Group]()
    rest: tuple[list[str], list[str]] = ([], [])
    for group in groups.values():
        if len(group[0]) != len(group[1]):
            rest[0].extend(group[0])
            rest[1].extend(group[1])
            continue
        matched, undecided = _split_by_labels(*group, labels, level + 1)
        pairs |= matched
        ambiguous += undecided
    matched, undecided = _split_by_labels(*rest, labels, level + 1)
    return pairs | matched, ambiguous + undecided
