"""A map that a user gives (`--weights-map`), torch's own names of variables to flax's: checked, and what it decides."""

import difflib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from compare.base.interface import Refused
from compare.base.trace import Layer, Trace, Variable
from compare.user_models.alignment import form

_ANY_ROLE = ("gamma", "free")


@dataclass(frozen=True)
class Owned:
    """A variable and the layer that it is of."""

    layer: Layer
    variable: Variable


def owned(trace: Trace) -> dict[str, Owned]:
    """Return every variable that the pass reached, by its own name, in execution order."""
    return {each.own: Owned(layer, each) for layer in trace.layers for each in layer.variables}


def check(given: Mapping[str, str], torch: Trace, jax: Trace) -> None:
    """Check that a map names what is there, once, and what fits.

    Raises:
        Refused: naming the first entry that does not.
    """
    known = owned(torch), owned(jax)
    taken: dict[str, str] = {}
    for name, other in given.items():
        for side, trace, names, each in (("torch", torch, known[0], name), ("flax", jax, known[1], other)):
            if each not in names:
                raise Refused(f"the weights map names {each!r}, {_unknown(each, side, trace, list(names))}")
        if other in taken:
            raise Refused(f"the weights map gives {other!r} twice: to {taken[other]!r} and to {name!r}; allowed: once")
        taken[other] = name
        problem = _unfit(known[0][name], known[1][other])
        if problem:
            raise Refused(f"the weights map gives {other!r} to {name!r}, which does not fit: {problem}")
    _check_whole(given, *known)


def fixed_layers(given: Mapping[str, str], torch: Trace, jax: Trace) -> dict[str, str]:
    """Return torch path to flax path of the layers whose variables a checked map gives to each other and no other."""
    known = owned(torch), owned(jax)
    ahead, back = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for name, other in given.items():
        first, second = known[0][name].layer.path, known[1][other].layer.path
        ahead[first].add(second)
        back[second].add(first)
    return {path: other for path, (other, *more) in ahead.items() if not more and len(back[other]) == 1}


def _check_whole(given: Mapping[str, str], torch: Mapping[str, Owned], jax: Mapping[str, Owned]) -> None:
    """Check that no layer's variables go to several layers of which each has all of them."""
    partners: dict[str, Owned] = {}
    for name, other in given.items():
        layer, partner = torch[name].layer, jax[other]
        first = partners.setdefault(layer.path, partner).layer
        wanted, there = ({each.role for each in side.variables} for side in (layer, partner.layer))
        if first is not partner.layer and len(wanted) > 1 and wanted <= there & {each.role for each in first.variables}:
            raise Refused(
                f"the weights map gives variables of torch's {layer.path!r} to two layers of flax, {first.path!r} and "
                f"{partner.layer.path!r}; allowed: all of them to one"
            )


def _unknown(name: str, side: str, trace: Trace, names: list[str]) -> str:
    if name in trace.unused:
        return f"which a pass through {side}'s model does not reach"
    near = difflib.get_close_matches(name, names, 3, 0.4) or names[:3]
    return f"which is no parameter or buffer of {side}'s model; allowed, for instance: {', '.join(map(repr, near))}"


def _unfit(torch: Owned, jax: Owned) -> str | None:
    a, b = torch.variable, jax.variable
    if form(torch.layer, a) != form(jax.layer, b):
        return f"shape {list(a.shape)} against {list(b.shape)} (kernels HWIO or [inputs, outputs])"
    if a.role != b.role and a.role not in _ANY_ROLE and b.role not in _ANY_ROLE:
        return f"a {a.role} against a {b.role}"
    if a.is_parameter != b.is_parameter:
        return "only one of the two is trained"
    return None
