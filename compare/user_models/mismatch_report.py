"""Why two traces do not match: both sequences side by side around the place where they part, and what settles it."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import takewhile, zip_longest

from compare.base.trace import Layer, Trace
from compare.user_models.alignment import (
    Alignment,
    Group,
    base_of,
    form,
    kind,
)

_WIDTH = 100
_BEFORE, _AFTER = 8, 16
_COMPARED = 60
_SHORT = {"convolution": "conv", "transposed-convolution": "transposed"}

Row = tuple[str, Layer | None, Layer | None]


def explain(torch: Trace, jax: Trace, alignment: Alignment, given: int) -> str:
    """Return, for an alignment that leaves layers over, what differs first, a table, and what settles it.

    `given` is the number of variables that a map has named.
    """
    pairs, others = alignment.pairs, {each.path: each for each in jax.layers}
    matched = set(pairs.values())
    left = [each for each in torch.layers if each.path not in pairs]
    first = torch.layers.index(left[0]) if left else len(torch.layers)
    before = [(each, others[pairs[each.path]]) for each in torch.layers[:first]]
    group = next((each for each in alignment.ambiguous if left and left[0].path in each[0]), None)
    if group:
        what, settled, rows = _ambiguous(group, torch, jax)
    else:
        alike, *sides = _without_free(left, [each for each in jax.layers if each.path not in matched])
        before += alike
        rows = _aligned(*(side[:_COMPARED] for side in sides))
        what, settled = _incomplete(rows)
    number = len(before)
    count = "1 layer matches before" if number == 1 else f"{number or 'no'} layers match before"
    named = f" (variables named in the weights map: {given})" if given else ""
    lines = _excerpt(("torch", jax.framework), before, rows)
    return "\n".join([f"{what}; {count}{named}", *lines, settled])


def either(names: Sequence[str]) -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def listed(paths: Iterable[str]) -> str:
    """Return paths in words, the images by name."""
    return " and ".join(path or "the images" for path in paths) or "nothing"


def _ambiguous(group: Group, torch: Trace, jax: Trace) -> tuple[str, str, list[Row]]:
    """Return what is ambiguous, what settles it, and the layers in question."""
    first, second = (
        [each for each in side.layers if each.path in paths] for side, paths in zip((torch, jax), group, strict=True)
    )
    if len(first) == len(second):
        unclear = "neither shapes nor the layers behind tell which is which"
    else:
        counts = f"{len(first)} in torch, {len(second)} in flax"
        unclear = f"{counts}, and neither shapes nor the layers behind tell which is missing"
    what = (
        f"ambiguous: torch's {', '.join(group[0])} and flax's {', '.join(group[1])} are of the same kind and come "
        f"after the same layers: {unclear}"
    )
    return what, _named(first, second), [("?", t, j) for t, j in zip_longest(first, second)]


def _named(torch: Sequence[Layer], jax: Sequence[Layer]) -> str:
    first = next((each for layer in torch for each in layer.variables), None)
    choices = [each.own for layer in jax for each in layer.variables if first and each.role == first.role]
    if first is None or not choices:
        return "settle it: change one of the models so that both call the same layers"
    instead = f" (or {either([repr(each) for each in choices[1:]])})" if choices[1:] else ""
    return (
        f"settle it with --weights-map FILE, a JSON object of torch's names to flax's: {{\"{first.own}\": "
        f'"{choices[0]}"{instead}, ...}}; what it does not name is matched as before'
    )


def _without_free(torch: list[Layer], jax: list[Layer]) -> tuple[list[tuple[Layer, Layer]], list[Layer], list[Layer]]:
    """Return, of what is left, layers that match by order, and where the others begin on both sides.

    What comes after free parameters depends on whether they are a module or a block's own, and so does their place in
    the order. Where there are any, the other layers are compared in order, and if they agree, the free ones.
    """
    free = [[each for each in side if each.role == "parameters"] for side in (torch, jax)]
    if not any(free):
        return [], torch, jax
    known = [[each for each in side if each.role != "parameters"] for side in (torch, jax)]
    for first, second in (known, free):
        alike = list(takewhile(lambda pair: kind(pair[0]) == kind(pair[1]), zip(first, second, strict=False)))
        if len(alike) < max(len(first), len(second)):
            return alike, first[len(alike) :], second[len(alike) :]
    return [], torch, jax


def _aligned(torch: Sequence[Layer], jax: Sequence[Layer]) -> list[Row]:
    """Return rows of both sides, `>` where they differ: gaps where only one side has a layer of that kind."""
    kinds = [[(kind(each), base_of(each.path)[1]) for each in side] for side in (torch, jax)]
    rows: list[Row] = []
    for tag, i, i_end, j, j_end in SequenceMatcher(None, *kinds, autojunk=False).get_opcodes():
        mark = "" if tag == "equal" else ">"
        rows += [(mark, first, second) for first, second in zip_longest(torch[i:i_end], jax[j:j_end])]
    if rows and not rows[0][0]:
        rows[0] = (">", *rows[0][1:])
    return rows


def _incomplete(rows: Sequence[Row]) -> tuple[str, str]:
    """Return what differs in the first row, and what settles it."""
    changed = "settle it: change one of the models; a map cannot make up for it"
    _, torch, jax = rows[0]
    if torch is None or jax is None:
        side, other, layer = ("torch", "flax", torch) if torch else ("flax", "torch", jax)
        run = len(list(takewhile(lambda row: row[1 if torch is None else 2] is None, rows)))
        more = f" and {run - 1} after it" if run > 1 else ""
        return f"incomplete: {other} lacks a layer like {side}'s {_described(layer)}{more}", changed
    here, there = f"torch's {_described(torch)}", f"flax's {_described(jax)}"
    calls = [bool(base_of(each.path)[1]) for each in (torch, jax)]
    if calls[0] != calls[1]:
        return f"incomplete: one is the second call of a layer, the other is not: {here}, {there}", changed
    if kind(torch) == kind(jax):
        return (
            f"incomplete: {here} comes after {listed(torch.after)}, {there} after {listed(jax.after)}",
            "wire the models alike, or " + _named([torch], [jax]),
        )
    if kind(torch)[0] == kind(jax)[0] and torch.role != "parameters":
        return f"incomplete: {_unlike(torch, jax)}: {here}, {there}", changed
    return (
        f"incomplete: torch has {_described(torch)} where flax has {_described(jax)}",
        "settle it: change one of the models; variables that are the same, written in another way, can be named in "
        "--weights-map FILE",
    )


def _unlike(torch: Layer, jax: Layer) -> str:
    a, b = ({each.role: each for each in layer.variables} for layer in (torch, jax))
    for side, other, has, lacks in (("torch", "flax", a, b), ("flax", "torch", b, a)):
        missing = [role for role in has if role not in lacks]
        if missing:
            return f"a missing {missing[0]}, which {side} has and {other} has not"
    role = next((role for role in a if form(torch, a[role]) != form(jax, b[role])), None)
    if role is None:
        return "only one of the two is trained"
    return f"another shape of {role}, {_shape(a[role].shape)} in torch and {_shape(b[role].shape)} in flax"


def _described(layer: Layer | None) -> str:
    return "" if layer is None else f"{layer.path or 'model'} ({layer.role} {_size(layer)})"


def _size(layer: Layer) -> str:
    """Return the shapes in short: the kernel's or the features', `+b` if there is a bias beside a kernel."""
    roles = {each.role: each.shape for each in layer.variables}
    if "kernel" in roles:
        return _shape(roles["kernel"]) + ("+b" if "bias" in roles else "")
    if layer.role == "parameters":
        return ",".join(_shape(each.shape) for each in layer.variables)
    return _shape(next(iter(roles.values()))) if roles else "called again"


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"


def _excerpt(heads: tuple[str, str], before: Sequence[tuple[Layer, Layer]], rows: Sequence[Row]) -> list[str]:
    """Return the table of the last layers that match and the first rows after them, and how many are left out."""
    shown: list[Row] = [("", t, j) for t, j in before[-_BEFORE:]]
    head, *lines = _table(heads, [*shown, *rows[:_AFTER]])
    above = [f"  ... {len(before) - len(shown)} more"] if len(before) > len(shown) else []
    below = [f"  ... {len(rows) - _AFTER} more"] if len(rows) > _AFTER else []
    return [head, *above, *lines, *below]


def _table(heads: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    """Return lines of at most 100 columns, the head first; paths lose their beginning if they do not fit."""
    cells = [[("", "", "") if each is None else _cell(each) for each in row[1:]] for row in rows]
    used = [max((len(cell[column]) for pair in cells for cell in pair), default=0) for column in (0, 1)]
    used = [min(width, 18) for width in used]
    room = (_WIDTH - 2 - 3) // 2
    path = room - sum(used) - 2

    def text(cell: tuple[str, str, str]) -> str:
        role, size, name = cell
        name = name if len(name) <= path else "…" + name[1 - path :]
        return f"{role[: used[0]]:<{used[0]}} {size[: used[1]]:<{used[1]}} {name}".rstrip()

    lines = [f"  {heads[0]:<{room}} | {heads[1]}"]
    for (mark, *_), (left, right) in zip(rows, cells, strict=True):
        lines.append(f"{mark:<2}{text(left):<{room}} | {text(right)}".rstrip())
    return lines


def _cell(layer: Layer) -> tuple[str, str, str]:
    return _SHORT.get(layer.role, layer.role), _size(layer), layer.path
