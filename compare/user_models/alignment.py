"""Which layer of one trace is which of the other, by what a layer is and which matched layers it comes after.

Two layers match if they are of the same kind (role, shapes of the variables) and come after the same matched layers;
that holds whatever order two branches are executed in. Where several do, what lies ahead of them tells them apart, then
their settings; the names that users give decide nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from compare.base.trace import IMAGES, Layer, Trace, Variable

_LOOK_AHEAD = 8
_TOLD_APART_BY = ("kernel", "stride", "dilation", "groups", "padding", "output_padding", "epsilon", "momentum")

Kind = tuple[Hashable, ...]
Group = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Alignment:
    """`pairs`, torch path to flax path, and `ambiguous`: groups of torch and flax paths that nothing tells apart."""

    pairs: Mapping[str, str]
    ambiguous: tuple[Group, ...]


def base_of(path: str) -> tuple[str, str]:
    """Return the path of a layer's first call, and which call this is: `""`, `"2"`, `"3"`, ..."""
    first, _, call = path.partition("#")
    return first, call


def form(layer: Layer, variable: Variable) -> tuple[int, ...]:
    """Return the shape that decides: without axes of length 1 of a free parameter, [inputs, outputs] if 1x1."""
    shape = variable.shape
    if layer.role == "parameters":
        return tuple(length for length in shape if length != 1)
    if variable.role == "kernel" and shape[:2] == (1, 1) and len(shape) == 4 and _role(layer) == "dense":
        return shape[2:]
    return shape


def kind(layer: Layer) -> Kind:
    """Return role and variables' shapes: layers of one kind can hold the same weights."""
    loose = layer.role == "parameters"
    variables = [("" if loose else each.role, form(layer, each), each.is_parameter) for each in layer.variables]
    return (_role(layer), *sorted(variables))


def align(torch: Trace, jax: Trace, fixed: Mapping[str, str]) -> Alignment:
    """Match as many layers as can be, those of `fixed` (torch path to flax path) as they are.

    A layer behind one that has no counterpart has none either, unless it is fixed.
    """
    numbers = dict[Hashable, int]()
    sides = _Side(torch, numbers), _Side(jax, numbers)
    pairs = {IMAGES: IMAGES} | dict(fixed)
    waiting = defaultdict[Hashable, list[str]](list)
    taken = set(fixed.values())
    for layer in jax.layers:
        if layer.path not in taken:
            waiting[sides[1].key(layer, lambda path: path)].append(layer.path)
    alike = defaultdict[Hashable, list[str]](list)
    for layer in torch.layers:
        if layer.path not in fixed:
            alike[sides[0].key(layer, lambda path: path)].append(layer.path)
    ambiguous: list[Group] = []
    for group in alike.values():  # in the order of their first, so that what comes before them has been matched
        layer = sides[0].layers[group[0]]
        before = {*layer.after, *([base_of(layer.path)[0]] if base_of(layer.path)[1] else [])}
        if not before <= pairs.keys():
            continue
        candidates = waiting[sides[0].key(layer, pairs.__getitem__)]
        found, unsettled = _settled(group, candidates, sides)
        pairs |= found
        ambiguous += unsettled
    return Alignment({t: j for t, j in pairs.items() if t != IMAGES}, tuple(ambiguous))


def in_order(torch: Sequence[Layer], jax: Sequence[Layer]) -> dict[str, str] | None:
    """Return the pairs of equally many layers of the same kinds in the same order, None where they are not that."""
    kinds = [[_called(layer, side) for layer in side] for side in (torch, jax)]
    if kinds[0] != kinds[1]:
        return None
    return {t.path: j.path for t, j in zip(torch, jax, strict=True)}


def _called(layer: Layer, side: Sequence[Layer]) -> Kind:
    first, call = base_of(layer.path)
    if not call:
        return kind(layer)
    return ("again", call, next((index for index, each in enumerate(side) if each.path == first), -1))


def _role(layer: Layer) -> str:
    """Return the role, `dense` for a 1x1 convolution as well: it may be written either way."""
    kernel = next((each.shape for each in layer.variables if each.role == "kernel"), ())
    pointwise = layer.role == "convolution" and kernel[:2] == (1, 1) and layer.settings.get("groups", 1) == 1
    return "dense" if pointwise else layer.role


class _Side:
    """One trace, with what tells its layers apart; equal things have equal numbers on both sides."""

    def __init__(self, trace: Trace, numbers: dict[Hashable, int]) -> None:
        self.layers = {layer.path: layer for layer in trace.layers}
        self._kinds = {
            layer.path: (bool(base_of(layer.path)[1]), kind(self.layers.get(base_of(layer.path)[0], layer)))
            for layer in trace.layers
        }
        followers = defaultdict[str, list[str]](list)
        for layer in trace.layers:
            for path in layer.after:
                followers[path].append(layer.path)
        ends = set(trace.after)

        def seen(path: str, ahead: Mapping[str, int]) -> int:
            what = (self._kinds[path], path in ends, *sorted(ahead.get(each, 0) for each in followers[path]))
            return numbers.setdefault(what, len(numbers) + 1)

        self._ahead = [{path: seen(path, {}) for path in self.layers}]
        for _ in range(_LOOK_AHEAD):
            nearer = self._ahead[-1]
            self._ahead.append({path: seen(path, nearer) for path in self.layers})
        whole: dict[str, int] = {}
        for path in reversed(self.layers):
            whole[path] = seen(path, whole)
        self._ahead.append(whole)

    def key(self, layer: Layer, other: Callable[[str], str]) -> Hashable:
        """Return what must be equal in two layers that match, `other` giving the matched layers' names."""
        first, call = base_of(layer.path)
        what = ("again", call, other(first)) if call else kind(layer)
        return what, frozenset(other(path) for path in layer.after)

    def labels(self, path: str) -> list[Hashable]:
        """Return what may tell a layer from others of the same key, what counts most first."""
        layer = self.layers[path]
        settings = tuple((name, repr(layer.settings.get(name))) for name in _TOLD_APART_BY)
        ahead = (numbers[path] for numbers in self._ahead)
        return [layer.role, *ahead, settings, layer.output[1:], tuple(sorted(layer.between))]


def _settled(
    torch: Sequence[str], jax: Sequence[str], sides: tuple[_Side, _Side]
) -> tuple[dict[str, str], list[Group]]:
    """Return the pairs of two groups with the same key, and what of them nothing tells apart."""
    if len(torch) == len(jax) == 1:
        return {torch[0]: jax[0]}, []
    labels = [{path: side.labels(path) for path in group} for side, group in zip(sides, (torch, jax), strict=True)]
    return _told_apart(list(torch), list(jax), labels, 0)


def _told_apart(
    torch: list[str], jax: list[str], labels: list[dict[str, list[Hashable]]], level: int
) -> tuple[dict[str, str], list[Group]]:
    if not torch or not jax:
        return {}, []
    if len(torch) == len(jax) == 1:
        return {torch[0]: jax[0]}, []
    if level == len(labels[0][torch[0]]):
        return {}, [(tuple(torch), tuple(jax))]
    groups = defaultdict[Hashable, tuple[list[str], list[str]]](lambda: ([], []))
    for side, paths in enumerate((torch, jax)):
        for path in paths:
            groups[labels[side][path][level]][side].append(path)
    pairs, unsettled = dict[str, str](), list[Group]()
    left: tuple[list[str], list[str]] = ([], [])
    for group in groups.values():
        if len(group[0]) != len(group[1]):
            left[0].extend(group[0])
            left[1].extend(group[1])
            continue
        found, open_ones = _told_apart(*group, labels, level + 1)
        pairs |= found
        unsettled += open_ones
    found, open_ones = _told_apart(*left, labels, level + 1)
    return pairs | found, unsettled + open_ones
