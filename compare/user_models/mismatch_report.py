"""Explain why two traces do not match: the first difference, a table of both sequences around it, and the remedy."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import takewhile, zip_longest

from compare.base.trace import Layer, Trace
from compare.user_models.alignment import (
    Alignment,
    Group,
    find_kind,
    find_matching_shape,
    split_call,
)
from compare.user_models.weights_map import list_variables

_WIDTH = 100
_ROWS_BEFORE, _ROWS_AFTER = 8, 16
_LAYERS_COMPARED = 60
_BATCH_NORM_VARIABLES = 4
_NO_MATCH = "the layers do not match"
_SHORT_ROLES = {"convolution": "conv", "transposed-convolution": "transposed"}

Row = tuple[str, Layer | None, Layer | None]
"""A mark (`>` where the sides differ, `?` where the match is ambiguous) and the layers of torch and flax."""


def explain(torch: Trace, jax: Trace, alignment: Alignment, mapped: int) -> str:
    """Explain an alignment that leaves layers over: the first difference, a table, and the remedy.

    Args:
        torch: torch's trace.
        jax: flax's trace.
        alignment: their alignment.
        mapped: how many variables the user's map names.
    """
    pairs, jax_layers = alignment.pairs, {layer.path: layer for layer in jax.layers}
    matched = set(pairs.values())
    rest = [layer for layer in torch.layers if layer.path not in pairs]
    first = torch.layers.index(rest[0]) if rest else len(torch.layers)
    before = [(layer, jax_layers[pairs[layer.path]]) for layer in torch.layers[:first]]
    group = next((group for group in alignment.ambiguous if rest and rest[0].path in group[0]), None)
    if group:
        problem, remedy, rows = _explain_ambiguous(group, torch, jax)
    else:
        left = [layer for layer in jax.layers if layer.path not in matched]
        same, *sides = _skip_free(rest, left)
        before += same
        rows = _align_rows(*(side[:_LAYERS_COMPARED] for side in sides))
        rows[0] = _add_own_layer(rows[0], rest, left)
        problem, remedy = _explain_difference(rows)
        tie = _explain_second_call(rows[0], before) or _explain_tie((torch, jax), (rest, left))
        remedy = _explain_loop(left) or _explain_frozen(torch, left) or tie or remedy
    count = "1 layer matches before" if len(before) == 1 else f"{len(before) or 'no'} layers match before"
    variables = f" (variables named in the weights map: {mapped})" if mapped else ""
    table = _excerpt(("torch", jax.framework), before, rows)
    return "\n".join([f"{problem}; {count}{variables}", *table, remedy])


def _explain_loop(layers: Iterable[Layer]) -> str | None:
    """Say what to do about flax layers in a loop. Return None without any."""
    looped = [layer.path for layer in layers if layer.is_looped and not split_call(layer.path)[1]]
    if not looped:
        return None
    return (
        f"settle it: nn.scan or another loop of JAX calls flax's {join_paths(looped)}, and torch has no such loop; "
        "write the loop over the layers out in flax"
    )


def _explain_frozen(torch: Trace, layers: Iterable[Layer]) -> str | None:
    """Say what to do about batch norms of flax that hold nothing but constants in torch. Return None without any."""
    held = Counter(name.rpartition(".")[0] for name in torch.constants)
    frozen = [path for path, count in held.items() if count == _BATCH_NORM_VARIABLES]
    if not frozen or not any(layer.role == "batch-norm" for layer in layers):
        return None
    return (
        f"settle it: torch's {frozen[0]} may be a batch norm, but all its tensors are buffers that never change, and "
        "flax has a scale and a bias; in torch use a class of nn.BatchNorm2d whose train() calls super().train(False)"
    )


def _explain_second_call(row: Row, before: Sequence[tuple[Layer, Layer]]) -> str | None:
    """Say what to do about a layer that one side calls again, where the other has one of its own."""
    _, torch, jax = row
    if torch is None or jax is None or torch.role != jax.role:
        return None
    paths, partners = [split_call(layer.path) for layer in (torch, jax)], {t.path: j.path for t, j in before}
    (first, call), (flax_first, flax_call) = paths
    if bool(call) == bool(flax_call):
        return None
    if call:
        again = f"call {partners[first]} there again" if first in partners else "call one layer twice"
        cure = f"in flax {again}, or in torch call a copy.deepcopy of {first} there, made in __init__"
        return _write_tie("torch", first, call, "flax", flax_first, cure)
    partner = next((t for t, j in partners.items() if j == flax_first), "one layer")
    cure = f"in torch call {partner} there again, or in flax make a second layer"
    return _write_tie("flax", flax_first, flax_call, "torch", first, cure)


def _explain_shared_layer(group: Group, torch: Trace, jax: Trace) -> str | None:
    """Say what to do if one side calls the only layer of a group again, and the other has one for each call."""
    sides = ("torch", torch, group[0], "flax", group[1]), ("flax", jax, group[1], "torch", group[0])
    for side, trace, paths, other, others in sides:
        calls = sum(split_call(layer.path)[0] == paths[0] for layer in trace.layers)
        if len(paths) == 1 and calls == len(others):
            cure = f"in {other} call {others[0]} there each time, or in {side} make {calls} layers"
            return _write_tie(side, paths[0], calls, other, join_paths(others), cure)
    return None


def _explain_tie(traces: tuple[Trace, Trace], rest: tuple[Sequence[Layer], Sequence[Layer]]) -> str | None:
    """Say what to do about a weight that functions of one side use again, where the other has a layer of its own."""
    shared = [
        {name: sorted(owner.variable.shape) for name, owner in list_variables(trace).items() if name in trace.reused}
        for trace in traces
    ]
    cures = (
        "in flax use the first weights again, as embed.attend(x) does, or in torch use "
        "nn.Parameter(model.{}.detach().clone()) there",
        "in torch use the first weights again, as decoder.weight = embed.weight does, or in flax use a layer there",
    )
    for side, other, weights, others, left, cure in (
        ("torch", "flax", *shared, rest[1], cures[0]),
        ("flax", "torch", *reversed(shared), rest[0], cures[1]),
    ):
        for name, shape in weights.items():
            apart = [each.own for layer in left for each in layer.variables if sorted(each.shape) == shape]
            if apart and shape not in others.values():
                place = name.removeprefix("params/").replace(".", "/").rpartition("/")[0].replace("/", ".") or name
                return _write_tie(side, place, 2, other, apart[0], cure.format(name))
    return None


def _write_tie(side: str, place: str, calls: int | str, other: str, others: str, cure: str) -> str:
    return (
        f"settle it: {side} uses the weights of {place} at {calls} places, and {other} has others in {others}; {cure}"
    )


def join_choices(names: Sequence[str]) -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def join_paths(paths: Iterable[str]) -> str:
    """Return `a and b`, `the images` for the images and `nothing` without any path."""
    return " and ".join(path or "the images" for path in paths) or "nothing"


def _explain_ambiguous(group: Group, torch: Trace, jax: Trace) -> tuple[str, str, list[Row]]:
    """Return the problem, the remedy, and the layers in question."""
    torch_layers, jax_layers = (
        [layer for layer in side.layers if layer.path in paths] for side, paths in zip((torch, jax), group, strict=True)
    )
    if len(torch_layers) == len(jax_layers):
        reason = "neither shapes nor the layers behind tell which is which"
    else:
        counts = f"{len(torch_layers)} in torch, {len(jax_layers)} in flax"
        reason = f"{counts}, and neither shapes nor the layers behind tell which is missing"
    remedy = _explain_shared_layer(group, torch, jax) or _suggest_map(torch_layers, jax_layers)
    problem = (
        f"ambiguous: torch's {', '.join(group[0])} and flax's {', '.join(group[1])} are of the same kind and come "
        f"after the same layers: {reason}"
    )
    rows: list[Row] = [("?", t, j) for t, j in zip_longest(torch_layers, jax_layers)]
    return problem, remedy, rows


def _suggest_map(torch: Sequence[Layer], jax: Sequence[Layer]) -> str:
    first = next((variable for layer in torch for variable in layer.variables), None)
    choices = [variable.own for layer in jax for variable in layer.variables if first and variable.role == first.role]
    if first is None or not choices:
        return "settle it: change one of the models so that both call the same layers"
    others = f" (or {join_choices([repr(choice) for choice in choices[1:]])})" if choices[1:] else ""
    return (
        f"settle it with --weights-map FILE, a JSON object of torch's names to flax's: {{\"{first.own}\": "
        f'"{choices[0]}"{others}, ...}}; variables that it leaves out are matched as before'
    )


def _skip_free(torch: list[Layer], jax: list[Layer]) -> tuple[list[tuple[Layer, Layer]], list[Layer], list[Layer]]:
    """Return unmatched layers that match by order, and the rest of both sides.

    A free parameter may be a module or belong to a block, and its place in the order depends on that. So the other
    layers are compared first, in order. If they agree, the free parameters are compared.
    """
    sides = torch, jax
    free = [[layer for layer in side if layer.role == "parameters"] for side in sides]
    if not any(free):
        return [], torch, jax
    others = [[layer for layer in side if layer.role != "parameters"] for side in sides]
    for first, second in (others, free):
        same = _count_alike(first, second)
        if first is free[0] and {len(side[same].variables) for side in free if side[same:]} - {1}:
            first, second = map(_split_up, free)
            same = _count_alike(first, second)
        if same < max(len(first), len(second)):
            return list(zip(first[:same], second[:same], strict=True)), first[same:], second[same:]
    return [], torch, jax


def _count_alike(torch: Sequence[Layer], jax: Sequence[Layer]) -> int:
    """Return how many layers match by order before the first that do not."""
    pairs = zip(torch, jax, strict=False)
    return len(list(takewhile(lambda pair: find_kind(pair[0]) == find_kind(pair[1]), pairs)))


def _split_up(layers: Sequence[Layer]) -> list[Layer]:
    """Return a layer for each free parameter, in the order of their first use."""
    single = [replace(layer, path=each.own, variables=(each,)) for layer in layers for each in layer.variables]
    return sorted(single, key=lambda layer: layer.variables[0].moment)


def _align_rows(torch: Sequence[Layer], jax: Sequence[Layer]) -> list[Row]:
    """Return rows of both sides, `>` where they differ, with gaps where only one side has a layer of that kind."""
    kinds = [[(find_kind(layer), split_call(layer.path)[1]) for layer in side] for side in (torch, jax)]
    rows: list[Row] = []
    for tag, i, i_end, j, j_end in SequenceMatcher(None, *kinds, autojunk=False).get_opcodes():
        mark = "" if tag == "equal" else ">"
        rows += [(mark, first, second) for first, second in zip_longest(torch[i:i_end], jax[j:j_end])]
    if rows and not rows[0][0]:
        rows[0] = (">", *rows[0][1:])
    return rows


def _add_own_layer(row: Row, torch: Sequence[Layer], jax: Sequence[Layer]) -> Row:
    """Return a row with one layer completed by a layer of no known kind that has variables of the same shapes."""
    mark, here, there = row
    known = here or there
    if (here is None) == (there is None) or known is None or known.role == "parameters":
        return row
    for own in (each for each in (jax if there is None else torch) if each.role == "parameters"):
        pair = (here or own, there or own)
        if _pair_by_shape(*pair):
            return (mark, *pair)
    return row


def _explain_difference(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the difference in the first row, and the remedy."""
    change_model = "settle it: change one of the models to have the same layers; --weights-map cannot make up for it"
    _, torch, jax = rows[0]
    if torch is None or jax is None:
        side, other, layer = ("torch", "flax", torch) if torch else ("flax", "torch", jax)
        run = len(list(takewhile(lambda row: row[1 if torch is None else 2] is None, rows)))
        more = f" and {run - 1} after it" if run > 1 else ""
        kind = "a parameter" if _is_free(layer) else "a layer"
        return f"{_NO_MATCH}: {other} lacks {kind} like {side}'s {_describe(layer)}{more}", change_model
    here, there = f"torch's {_describe(torch)}", f"flax's {_describe(jax)}"
    is_repeated = [bool(split_call(layer.path)[1]) for layer in (torch, jax)]
    if is_repeated[0] != is_repeated[1]:
        return (
            f"{_NO_MATCH}: one is the second call of a layer, the other is not: {here}, {there}",
            change_model,
        )
    if find_kind(torch) == find_kind(jax):
        return (
            f"other wiring: {here} comes after {join_paths(torch.after)}, {there} after {join_paths(jax.after)}",
            "wire the models alike, or " + _suggest_map([torch], [jax]),
        )
    if find_kind(torch)[0] == find_kind(jax)[0] and torch.role != "parameters":
        return f"{_NO_MATCH}: {_explain_kinds(torch, jax)}: {here}, {there}", change_model
    if named := _pair_by_shape(torch, jax):
        return (
            f"{_NO_MATCH}: torch has {_describe(torch)} where flax has {_describe(jax)}, and nothing tells that both "
            "compute the same",
            f"settle it with --weights-map FILE, if they do, with this JSON in it: {json.dumps(named)}",
        )
    return (
        f"{_NO_MATCH}: torch has {_describe(torch)} where flax has {_describe(jax)}",
        "settle it: change one of the models; if both hold the same variables in another form, name them in "
        "--weights-map FILE",
    )


def _pair_by_shape(torch: Layer, jax: Layer) -> dict[str, str]:
    """Return a weights map of two layers with variables of the same shapes, empty if their shapes differ."""
    sides = [
        [(sorted(size for size in each.shape if size != 1), each.is_parameter, each.own) for each in layer.variables]
        for layer in (torch, jax)
    ]
    if not sides[0] or sorted(each[:2] for each in sides[0]) != sorted(each[:2] for each in sides[1]):
        return {}
    pairs, rest = dict[str, str](), list(sides[1])
    for shape, is_parameter, own in sides[0]:
        fitting = [each for each in rest if each[:2] == (shape, is_parameter)]
        leaf = own.rpartition(".")[2]
        chosen = next((each for each in fitting if each[2].rpartition("/")[2] == leaf), fitting[0])
        rest.remove(chosen)
        pairs[own] = chosen[2]
    return pairs


def _explain_kinds(torch: Layer, jax: Layer) -> str:
    a, b = ({variable.role: variable for variable in layer.variables} for layer in (torch, jax))
    for side, other, has, lacks in (("torch", "flax", a, b), ("flax", "torch", b, a)):
        missing = [role for role in has if role not in lacks]
        if missing:
            return f"a missing {missing[0]}, which {side} has and {other} has not"
    role = next((role for role in a if find_matching_shape(torch, a[role]) != find_matching_shape(jax, b[role])), None)
    if role is None:
        return "only one of the two is trained"
    return f"another shape of {role}, {_join_shape(a[role].shape)} in torch and {_join_shape(b[role].shape)} in flax"


def _is_free(layer: Layer | None) -> bool:
    return layer is not None and layer.role == "parameters"


def _describe(layer: Layer | None) -> str:
    """Return a layer's path, role and size. Free parameters have names of their own."""
    if layer is None:
        return ""
    path = layer.path or "model"
    if _is_free(layer) and layer.variables:
        path = " and ".join(variable.own for variable in layer.variables)
    return f"{path} ({layer.role} {_describe_size(layer)})"


def _describe_size(layer: Layer) -> str:
    """Return the shape of the kernel or the number of features. `+b` marks a bias beside a kernel."""
    roles = {variable.role: variable.shape for variable in layer.variables}
    if "kernel" in roles:
        return _join_shape(roles["kernel"]) + ("+b" if "bias" in roles else "")
    if layer.role == "parameters":
        return ",".join(_join_shape(variable.shape) for variable in layer.variables)
    return _join_shape(next(iter(roles.values()))) if roles else "called again"


def _join_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"


def _excerpt(heads: tuple[str, str], before: Sequence[tuple[Layer, Layer]], rows: Sequence[Row]) -> list[str]:
    """Return a table of the last matched layers and the first rows after them, with the numbers left out."""
    shown: list[Row] = [("", t, j) for t, j in before[-_ROWS_BEFORE:]]
    head, *lines = _table(heads, [*shown, *rows[:_ROWS_AFTER]])
    above = [f"  ... {len(before) - len(shown)} more"] if len(before) > len(shown) else []
    below = [f"  ... {len(rows) - _ROWS_AFTER} more"] if len(rows) > _ROWS_AFTER else []
    return [head, *above, *lines, *below]


def _table(heads: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    """Return lines of at most 100 columns, the head first. A path that does not fit loses its beginning."""
    cells = [[("", "", "") if layer is None else _cell(layer) for layer in row[1:]] for row in rows]
    widths = [max((len(cell[column]) for pair in cells for cell in pair), default=0) for column in (0, 1)]
    widths = [min(width, 18) for width in widths]
    room = (_WIDTH - 2 - 3) // 2
    path_width = room - sum(widths) - 2

    def text(cell: tuple[str, str, str]) -> str:
        role, size, path = cell
        path = path if len(path) <= path_width else "…" + path[1 - path_width :]
        return f"{role[: widths[0]]:<{widths[0]}} {size[: widths[1]]:<{widths[1]}} {path}".rstrip()

    lines = [f"  {heads[0]:<{room}} | {heads[1]}"]
    for (mark, *_), (left, right) in zip(rows, cells, strict=True):
        lines.append(f"{mark:<2}{text(left):<{room}} | {text(right)}".rstrip())
    return lines


def _cell(layer: Layer) -> tuple[str, str, str]:
    return _SHORT_ROLES.get(layer.role, layer.role), _describe_size(layer), layer.path
