"""Match every variable of one model with a variable of the other, alone or with a map, or refuse with the reason."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compare.base.interface import Refused
from compare.base.names import Crossing, Names
from compare.base.trace import IMAGES, Layer, Layout, Trace, Variable, take_padding
from compare.user_models.alignment import (
    Alignment,
    align,
    find_matching_shape,
    match_in_order,
    split_call,
)
from compare.user_models.mismatch_report import explain, join_choices, join_paths
from compare.user_models.weights_map import check, find_fixed_layers, list_variables


@dataclass(frozen=True)
class VariablePair:
    """One variable as each side has it.

    Attributes:
        name: its neutral name.
        layer: torch's path of its layer.
        torch: torch's variable.
        jax: flax's variable.
    """

    name: str
    layer: str
    torch: Variable
    jax: Variable


@dataclass(frozen=True)
class Matching:
    """The matched layers and variables of two models.

    Attributes:
        layers: matched layers (torch's, flax's) in torch's execution order, second calls included.
        variables: every parameter and buffer, in torch's execution order.
        ends: the functions between the last layers and the logits, torch's and flax's (`Trace.between`).
        remarks: matched layers that come after different layers (`torch's fc after a, flax's Dense_0 after b`).
    """

    layers: tuple[tuple[Layer, Layer], ...]
    variables: tuple[VariablePair, ...]
    ends: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    remarks: tuple[str, ...] = ()

    def names(self, apart: Collection[str] = ()) -> dict[str, Names]:
        """Return the name tables of both sides, `torch` and `jax`.

        Activations of the layers `apart` (torch's paths) are not compared, nor those of modules around different
        layers. The operation that uses a parameter counts, and not the module that holds it.
        """
        torch = tuple(
            Crossing(
                pair.torch.own,
                pair.name,
                pair.torch.shape,
                pair.torch.is_parameter,
                pair.torch.orders,
                pair.torch.axes,
            )
            for pair in self.variables
        )
        jax = tuple(
            Crossing(pair.jax.own, pair.name, pair.torch.shape, pair.jax.is_parameter, pair.jax.orders)
            for pair in self.variables
        )
        layers = [
            (t, j)
            for t, j in self.layers
            if split_call(t.path)[0] not in apart and t.inside == j.inside and t.is_recorded and j.is_recorded
        ]
        return {
            "torch": Names(torch, {t.path: t.path for t, _ in layers}, _collect_layouts(t for t, _ in layers)),
            "jax": Names(jax, {j.path: t.path for t, j in layers}, _collect_layouts(j for _, j in layers)),
        }

    def to_map(self) -> dict[str, str]:
        """Return torch's own name to flax's own name of every variable, as `--weights-map` reads them."""
        return {pair.torch.own: pair.jax.own for pair in self.variables}


def _collect_layouts(layers: Iterable[Layer]) -> dict[str, tuple[Layout, Layout]]:
    return {
        layer.path: (layer.input_layout, layer.output_layout)
        for layer in layers
        if (layer.input_layout, layer.output_layout) != (Layout(), Layout())
    }


def match(torch: Trace, jax: Trace, weights_map: Mapping[str, str] | None = None) -> Matching:
    """Match two traces by execution order, role and shape.

    Layers may run in another order, because the layers before them tell them apart. If the models are wired differently
    but have layers of the same kinds in the same order, the order decides.

    Args:
        torch: torch's trace.
        jax: flax's trace.
        weights_map: torch's own name to flax's own name of variables that the user has matched.

    Raises:
        Refused: the outputs differ in shape, the match is ambiguous or leaves layers over (with a table of both), or
            an entry of `weights_map` does not exist, does not fit or appears twice.
    """
    if torch.output != jax.output:
        raise Refused(
            f"the models' outputs differ in shape: {list(torch.output)} in torch, {list(jax.output)} in flax; allowed: "
            "logits [batch, classes] of the same shape"
        )
    names = dict(weights_map or {})
    check(names, torch, jax)
    fixed = find_fixed_layers(names, torch, jax)
    alignment = align(torch, jax, fixed)
    pairs = dict(alignment.pairs)
    if not _is_complete(torch, jax, alignment, names):
        in_order = None if alignment.ambiguous else _match_by_order(torch, jax, alignment, names, fixed)
        if in_order is None:
            raise Refused(explain(torch, jax, alignment, len(names)))
        pairs, free_names = in_order
        names |= free_names
    sides = _dissolve(torch, pairs.keys()), _dissolve(jax, set(pairs.values()))
    jax_layers = {layer.path: layer for layer in sides[1].layers}
    layers = tuple(
        _take_padding(layer, jax_layers[pairs[layer.path]]) for layer in sides[0].layers if layer.path in pairs
    )
    for torch_layer, jax_layer in layers:
        names |= _match_variables(torch_layer, jax_layer, names)
    variables, remarks = tuple(_pair_variables(torch, jax, names)), tuple(_remark_on_wiring(*sides, layers))
    return Matching(layers, variables, (sides[0].between, sides[1].between), remarks)


def _take_padding(torch: Layer, jax: Layer) -> tuple[Layer, Layer]:
    """Return two matched layers. If their padding differs, functions right before them may have padded the images."""
    is_same = torch.settings.get("padding") == jax.settings.get("padding")
    return (torch, jax) if is_same else (take_padding(torch), take_padding(jax))


def match_itself(trace: Trace) -> Matching:
    """Return the match of one model with itself, under neutral names made of its own."""
    dotted = {layer.path: layer.path.replace("/", ".") for layer in trace.layers} | {IMAGES: IMAGES}
    layers = tuple(
        (replace(layer, path=dotted[layer.path], after=tuple(dotted[path] for path in layer.after)), layer)
        for layer in trace.layers
    )
    renamed = replace(trace, layers=tuple(layer for layer, _ in layers))
    names = {name: name for name in list_variables(trace)}
    return Matching(layers, tuple(_pair_variables(renamed, trace, names)), (trace.between, trace.between))


def _dissolve(trace: Trace, matched: Collection[str]) -> Trace:
    """Return a trace without the unmatched layers of free parameters. Layers behind them come after those before them.

    The variables of these layers were matched one by one, because another module holds them on the other side.
    """
    gone, kept = dict[str, Layer](), list[Layer]()

    def look_through(after: Sequence[str], between: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        earlier = [gone[path] for path in after if path in gone]
        paths = dict.fromkeys(found for path in after for found in (gone[path].last if path in gone else (path,)))
        return tuple(paths), (*(word for layer in earlier for word in layer.until_end), *between)

    for layer in trace.layers:
        after, between = look_through(layer.after, layer.between)
        last, until_end = look_through(layer.last, layer.until_end)
        layer = replace(layer, after=after, between=between, last=last, until_end=until_end)
        if layer.role == "parameters" and layer.path not in matched:
            gone[layer.path] = layer
        else:
            kept.append(layer)
    after, between = look_through(trace.after, trace.between)
    return replace(trace, layers=tuple(kept), after=after, between=between)


def _is_complete(torch: Trace, jax: Trace, alignment: Alignment, names: Mapping[str, str]) -> bool:
    if names.keys() == list_variables(torch).keys() and set(names.values()) == list_variables(jax).keys():
        return True
    pairs = alignment.pairs
    return not (_unmatched(torch, set(pairs), set(names)) or _unmatched(jax, set(pairs.values()), set(names.values())))


def _unmatched(trace: Trace, paths: set[str], names: set[str]) -> list[Layer]:
    """Return the layers that are not in `paths` and have a variable that is not in `names`, or no variable."""
    return [
        layer
        for layer in trace.layers
        if layer.path not in paths
        and not (layer.variables and all(variable.own in names for variable in layer.variables))
    ]


def _match_by_order(
    torch: Trace, jax: Trace, alignment: Alignment, names: Mapping[str, str], fixed: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]] | None:
    """Match by execution order alone. Return pairs of layers and pairs of free parameters, None if that fails.

    A free parameter may belong to a block on one side and to a module of its own on the other. So free parameters are
    matched apart from the layers, and one by one in the order of their first use if they do not match as layers.
    """
    unmatched = (
        _unmatched(torch, set(fixed), set(names)),
        _unmatched(jax, set(fixed.values()), set(names.values())),
    )
    layers, free_layers = (
        [[layer for layer in side if (layer.role == "parameters") is is_free] for side in unmatched]
        for is_free in (False, True)
    )
    pairs = match_in_order(*layers)
    if pairs is None:
        return None
    roles = {layer.path: layer.role for layer in torch.layers}
    if any(fixed.get(t, pairs.get(t)) != j for t, j in alignment.pairs.items() if roles[t] != "parameters"):
        return None
    free_pairs = match_in_order(*free_layers)
    if free_pairs is not None:
        return {**fixed, **pairs, **free_pairs}, {}
    torch_free, jax_free = (
        sorted(((layer, each) for layer in side for each in layer.variables), key=lambda pair: pair[1].moment)
        for side in free_layers
    )
    torch_shapes, jax_shapes = (
        [(find_matching_shape(layer, each), each.is_parameter) for layer, each in side]
        for side in (torch_free, jax_free)
    )
    if torch_shapes != jax_shapes:
        return None
    return {**fixed, **pairs}, {t.own: j.own for (_, t), (_, j) in zip(torch_free, jax_free, strict=True)}


def _match_variables(torch: Layer, jax: Layer, names: Mapping[str, str]) -> dict[str, str]:
    """Match the variables of two matched layers by role and shape.

    If several fit, match them by name, then by use, then by the order of their first use.
    """
    used = set(names.values())
    rest = [variable for variable in jax.variables if variable.own not in used]
    matched: dict[str, str] = {}
    for variable in (each for each in torch.variables if each.own not in names):
        fitting = [other for other in rest if _variable_kind(torch, variable) == _variable_kind(jax, other)]
        chosen = fitting if len(fitting) == 1 else [other for other in fitting if _leaf(other) == _leaf(variable)]
        if len(chosen) != 1:
            chosen = [other for other in fitting if variable.use and other.use == variable.use]
        if len(chosen) != 1 and fitting and torch.role == "parameters":
            unmatched = [each for each in torch.variables if each.own not in names.keys() | matched.keys()]
            alike = [each for each in unmatched if _variable_kind(torch, each) == _variable_kind(jax, fitting[0])]
            chosen = _choose_by_moment(variable, alike, fitting)
        if len(chosen) != 1:
            choices = join_choices([repr(other.own) for other in fitting])
            raise Refused(
                f"torch's {variable.own} ({variable.role} {list(variable.shape)}) "
                + (f"may be {choices} of" if choices else "fits no unmatched variable of")
                + f" flax's {jax.path or 'model'}; settle it with --weights-map FILE, a JSON object of torch's names "
                "to flax's"
            )
        rest.remove(chosen[0])
        matched[variable.own] = chosen[0].own
    if rest:
        raise Refused(f"flax's {rest[0].own} has no counterpart in torch's {torch.path}, although their layers match")
    return matched


def _choose_by_moment(variable: Variable, alike: Sequence[Variable], fitting: Sequence[Variable]) -> list[Variable]:
    """Return the variable that is used as early among `fitting` as `variable` among `alike`, if the moments tell."""
    moments = [[each.moment for each in side] for side in (alike, fitting)]
    if len(alike) != len(fitting) or any(len(set(side)) < len(side) for side in moments):
        return []
    earlier = sum(moment < variable.moment for moment in moments[0])
    return [sorted(fitting, key=lambda each: each.moment)[earlier]]


def _variable_kind(layer: Layer, variable: Variable) -> tuple[str, tuple[int, ...], bool]:
    role = "" if layer.role == "parameters" else variable.role
    return role, find_matching_shape(layer, variable), variable.is_parameter


def _leaf(variable: Variable) -> str:
    return variable.own.replace("/", ".").rpartition(".")[2]


def _pair_variables(torch: Trace, jax: Trace, names: Mapping[str, str]) -> Iterator[VariablePair]:
    jax_variables = list_variables(jax)
    for name, owner in list_variables(torch).items():
        layer, variable = owner.layer, owner.variable
        roles = Counter(each.role for each in layer.variables)
        path = name.replace("/", ".") if roles[variable.role] > 1 else split_call(layer.path)[0]
        neutral = f"{path}.{variable.role}" if path else variable.role
        yield VariablePair(neutral, layer.path, variable, jax_variables[names[name]].variable)


def _remark_on_wiring(torch: Trace, jax: Trace, layers: Sequence[tuple[Layer, Layer]]) -> Iterator[str]:
    """Yield matched layers that come after layers that do not match: there the models are wired differently.

    Free parameters are left out. Which layers they come before depends on the module that holds them.
    """
    torch_paths = {j.path: t.path for t, j in layers} | {IMAGES: IMAGES}
    torch_free, jax_free = (
        {layer.path for layer in side.layers if layer.role == "parameters"} for side in (torch, jax)
    )
    places = [(f"torch's {t.path}", t.after, f"flax's {j.path}", j.after) for t, j in layers if t.role != "parameters"]
    for here, before, there, other in [*places, ("torch's logits", torch.after, "flax's", jax.after)]:
        if torch_free & set(before) or jax_free & set(other):
            continue
        if set(before) != {torch_paths.get(path, path) for path in other}:
            yield f"{here} after {join_paths(before)}, {there} after {join_paths(other)}"
