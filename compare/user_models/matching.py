"""Which variable of one model is which of the other: found by itself, settled by a map, or refused with the reason."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compare.base.interface import Refused
from compare.base.names import Crossing, Names
from compare.base.trace import IMAGES, Layer, Trace, Variable
from compare.user_models import mismatch_report
from compare.user_models.alignment import (
    Alignment,
    align,
    base_of,
    form,
    in_order,
)
from compare.user_models.weights_map import check, fixed_layers, owned


@dataclass(frozen=True)
class Carried:
    """One variable of both sides: its neutral name, that of the layer that it is of, and how each side has it."""

    name: str
    layer: str
    torch: Variable
    jax: Variable


@dataclass(frozen=True)
class Matching:
    """What is which.

    Attributes:
        layers: matched layers (torch's, flax's), second calls among them, in torch's execution order.
        variables: every parameter and buffer, in torch's execution order.
        ends: the functions between the last layers and the logits, torch's and flax's (`Trace.between`).
        remarks: where matched layers do not come after the same layers (`torch's fc after a, flax's Dense_0 after b`).
    """

    layers: tuple[tuple[Layer, Layer], ...]
    variables: tuple[Carried, ...]
    ends: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    remarks: tuple[str, ...] = ()

    def names(self, flattened: Mapping[str, int | None]) -> dict[str, Names]:
        """Return the tables of both sides, `torch` and `jax`.

        `flattened` has, by neutral name of a dense layer, what `compare.user_models.flattening.channels` found. Neutral is
        the order that flax has, so that only torch's rows and inputs are ever permuted.
        """
        torch = tuple(
            Crossing(
                each.torch.own,
                each.name,
                each.torch.shape,
                flattened.get(each.layer) if each.torch.role == "kernel" else None,
                each.torch.is_parameter,
            )
            for each in self.variables
        )
        jax = tuple(
            Crossing(each.jax.own, each.name, each.torch.shape, None, each.jax.is_parameter) for each in self.variables
        )
        return {
            "torch": Names(torch, {t.path: t.path for t, _ in self.layers}),
            "jax": Names(jax, {j.path: t.path for t, j in self.layers}),
        }

    def to_map(self) -> dict[str, str]:
        """Return torch's own name to flax's own name of every variable: what `--weights-map` reads."""
        return {each.torch.own: each.jax.own for each in self.variables}


def match(torch: Trace, jax: Trace, given: Mapping[str, str] | None = None) -> Matching:
    """Match two traces by execution order, role and shape, the variables that `given` names (torch to flax) as it says.

    Layers may be executed in another order: what they come after tells them apart. Where the models are wired
    differently, but have layers of the same kinds in the same order, the order decides.

    Raises:
        Refused: the outputs differ in shape; the match is ambiguous or incomplete (with both sequences side by side);
            `given` names what is not there, what does not fit, or one thing twice.
    """
    if torch.output != jax.output:
        raise Refused(
            f"the models' outputs differ in shape: {list(torch.output)} in torch, {list(jax.output)} in flax; allowed: "
            "logits [batch, classes] of the same shape"
        )
    bound = dict(given or {})
    check(bound, torch, jax)
    fixed = fixed_layers(bound, torch, jax)
    alignment = align(torch, jax, fixed)
    pairs = dict(alignment.pairs)
    if not _complete(torch, jax, alignment, bound):
        found = None if alignment.ambiguous else _by_order(torch, jax, alignment, bound, fixed)
        if found is None:
            raise Refused(mismatch_report.explain(torch, jax, alignment, len(bound)))
        pairs, free = found
        bound |= free
    by_path = {each.path: each for each in jax.layers}
    layers = tuple((each, by_path[pairs[each.path]]) for each in torch.layers if each.path in pairs)
    for pair in layers:
        bound |= _within(*pair, bound)
    variables, remarks = tuple(_carried(torch, jax, bound)), tuple(_remarks(torch, jax, layers))
    return Matching(layers, variables, (torch.between, jax.between), remarks)


def _complete(torch: Trace, jax: Trace, alignment: Alignment, bound: Mapping[str, str]) -> bool:
    if bound.keys() == owned(torch).keys() and set(bound.values()) == owned(jax).keys():
        return True
    pairs = alignment.pairs
    return not (_left(torch, set(pairs), set(bound)) or _left(jax, set(pairs.values()), set(bound.values())))


def _left(trace: Trace, paths: set[str], names: set[str]) -> list[Layer]:
    """Return the layers that are neither matched nor named in every variable."""
    return [
        layer
        for layer in trace.layers
        if layer.path not in paths and not (layer.variables and all(each.own in names for each in layer.variables))
    ]


def _by_order(
    torch: Trace, jax: Trace, alignment: Alignment, bound: Mapping[str, str], fixed: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return pairs of layers and pairs of free parameters' names by execution order alone, None where that fails.

    A free parameter may belong to a block on one side and be a module by itself on the other. Free parameters are
    therefore matched beside the layers, one by one where they do not match as layers.
    """
    left = _left(torch, set(fixed), set(bound)), _left(jax, set(fixed.values()), set(bound.values()))
    known, free = (
        [[each for each in side if (each.role == "parameters") is is_free] for side in left]
        for is_free in (False, True)
    )
    pairs = in_order(*known)
    if pairs is None:
        return None
    roles = {each.path: each.role for each in torch.layers}
    if any(fixed.get(t, pairs.get(t)) != j for t, j in alignment.pairs.items() if roles[t] != "parameters"):
        return None
    whole = in_order(*free)
    if whole is not None:
        return {**fixed, **pairs, **whole}, {}
    single = [[(form(layer, each), each) for layer in side for each in layer.variables] for side in free]
    if [(shape, each.is_parameter) for shape, each in single[0]] != [(s, each.is_parameter) for s, each in single[1]]:
        return None
    return {**fixed, **pairs}, {t.own: j.own for (_, t), (_, j) in zip(*single, strict=True)}


def _within(torch: Layer, jax: Layer, bound: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of two matched layers by role and shape, those of one module's own by name if need be."""
    taken = set(bound.values())
    left = [each for each in jax.variables if each.own not in taken]
    found: dict[str, str] = {}
    for variable in (each for each in torch.variables if each.own not in bound):
        alike = [other for other in left if _like(torch, variable) == _like(jax, other)]
        chosen = alike if len(alike) == 1 else [other for other in alike if _leaf(other) == _leaf(variable)]
        if len(chosen) != 1:
            raise Refused(
                f"torch's {variable.own} ({variable.role} {list(variable.shape)}) may be "
                f"{mismatch_report.either([repr(each.own) for each in alike]) or 'nothing that is left'} of flax's "
                f"{jax.path or 'model'}; settle it with --weights-map FILE, a JSON object of torch's names to flax's"
            )
        left.remove(chosen[0])
        found[variable.own] = chosen[0].own
    if left:
        raise Refused(f"flax's {left[0].own} has no counterpart in torch's {torch.path}, although their layers match")
    return found


def _like(layer: Layer, variable: Variable) -> tuple[str, tuple[int, ...], bool]:
    return "" if layer.role == "parameters" else variable.role, form(layer, variable), variable.is_parameter


def _leaf(variable: Variable) -> str:
    return variable.own.replace("/", ".").rpartition(".")[2]


def _carried(torch: Trace, jax: Trace, bound: Mapping[str, str]) -> Iterator[Carried]:
    others = owned(jax)
    for name, each in owned(torch).items():
        layer, variable = each.layer, each.variable
        roles = Counter(each.role for each in layer.variables)
        path = name if roles[variable.role] > 1 else base_of(layer.path)[0]
        neutral = f"{path}.{variable.role}" if path else variable.role
        yield Carried(neutral, layer.path, variable, others[bound[name]].variable)


def _remarks(torch: Trace, jax: Trace, layers: Sequence[tuple[Layer, Layer]]) -> Iterator[str]:
    """Yield where what matched layers come after does not match: the models are wired differently.

    Free parameters are left out: whether they are a module or a block's own decides what comes after what.
    """
    named = {j.path: t.path for t, j in layers} | {IMAGES: IMAGES}
    free = [{each.path for each in side.layers if each.role == "parameters"} for side in (torch, jax)]
    places = [(f"torch's {t.path}", t.after, f"flax's {j.path}", j.after) for t, j in layers if t.role != "parameters"]
    for here, before, there, other in [*places, ("torch's logits", torch.after, "flax's", jax.after)]:
        if free[0] & set(before) or free[1] & set(other):
            continue
        if set(before) != {named.get(path, path) for path in other}:
            yield f"{here} after {mismatch_report.listed(before)}, {there} after {mismatch_report.listed(other)}"
