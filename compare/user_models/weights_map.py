"""Check a user's `--weights-map` (torch's variable names to flax's) and find the layers that it settles."""

import difflib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from compare.base.interface import Refused
from compare.base.trace import Layer, Trace, Variable
from compare.user_models.alignment import find_matching_shape

_ANY_ROLE = ("gamma", "free")
_STATISTICS = ("mean", "var")


@dataclass(frozen=True)
class LayerVariable:
    """A variable and its layer."""

    layer: Layer
    variable: Variable


def list_variables(trace: Trace) -> dict[str, LayerVariable]:
    """Return every variable that the pass used, by its own name, in execution order."""
    return {variable.own: LayerVariable(layer, variable) for layer in trace.layers for variable in layer.variables}


def find_constants(torch: Trace, jax: Trace, weights_map: Mapping[str, str]) -> list[str]:
    """Return torch's buffers that never change and have no counterpart: flax writes such constants into the code."""
    others = [
        find_matching_shape(owner.layer, owner.variable)
        for owner in list_variables(jax).values()
        if owner.variable.role not in _STATISTICS and not owner.variable.is_parameter
    ]
    constants = list[str]()
    for name, owner in list_variables(torch).items():
        if name in torch.constants and owner.variable.role not in _STATISTICS and name not in weights_map:
            shape = find_matching_shape(owner.layer, owner.variable)
            if shape in others:
                others.remove(shape)
            else:
                constants.append(name)
    return constants


def check(weights_map: Mapping[str, str], torch: Trace, jax: Trace) -> None:
    """Check that a map names existing variables once each, and that each pair fits.

    Raises:
        Refused: for the first wrong entry, by name.
    """
    torch_variables, jax_variables = list_variables(torch), list_variables(jax)
    partners: dict[str, str] = {}
    for torch_name, jax_name in weights_map.items():
        if torch_name not in torch_variables:
            raise Refused(_explain_unknown(torch_name, "torch", torch, list(torch_variables)))
        if jax_name not in jax_variables:
            raise Refused(_explain_unknown(jax_name, "flax", jax, list(jax_variables)))
        if jax_name in partners:
            raise Refused(
                f"the weights map gives {jax_name!r} twice: to {partners[jax_name]!r} and to {torch_name!r}; "
                "allowed: once"
            )
        partners[jax_name] = torch_name
        problem = _find_misfit(torch_variables[torch_name], jax_variables[jax_name])
        if problem:
            raise Refused(f"the weights map gives {jax_name!r} to {torch_name!r}, which does not fit: {problem}")
    _check_layers(weights_map, torch_variables, jax_variables)


def find_fixed_layers(weights_map: Mapping[str, str], torch: Trace, jax: Trace) -> dict[str, str]:
    """Return torch path to flax path of the layers that a checked map pairs one to one."""
    torch_variables, jax_variables = list_variables(torch), list_variables(jax)
    partners, torch_layers = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for torch_name, jax_name in weights_map.items():
        torch_path, jax_path = torch_variables[torch_name].layer.path, jax_variables[jax_name].layer.path
        partners[torch_path].add(jax_path)
        torch_layers[jax_path].add(torch_path)
    return {path: other for path, (other, *more) in partners.items() if not more and len(torch_layers[other]) == 1}


def _check_layers(
    weights_map: Mapping[str, str], torch: Mapping[str, LayerVariable], jax: Mapping[str, LayerVariable]
) -> None:
    """Check that the variables of one layer do not go to two layers if each could hold them all."""
    first_partners: dict[str, LayerVariable] = {}
    for torch_name, jax_name in weights_map.items():
        layer, partner = torch[torch_name].layer, jax[jax_name]
        first = first_partners.setdefault(layer.path, partner).layer
        roles, partner_roles, first_roles = (
            {variable.role for variable in side.variables} for side in (layer, partner.layer, first)
        )
        if first is not partner.layer and len(roles) > 1 and roles <= partner_roles & first_roles:
            raise Refused(
                f"the weights map gives variables of torch's {layer.path!r} to two layers of flax, {first.path!r} and "
                f"{partner.layer.path!r}; allowed: all of them to one"
            )


def _explain_unknown(name: str, side: str, trace: Trace, names: list[str]) -> str:
    if name in trace.unused:
        return f"the weights map names {name!r}, which a forward pass of {side}'s model does not use"
    similar = difflib.get_close_matches(name, names, 3, 0.4) or names[:3]
    return (
        f"the weights map names {name!r}, which is no parameter or buffer of {side}'s model; "
        f"allowed, for instance: {', '.join(map(repr, similar))}"
    )


def _find_misfit(torch: LayerVariable, jax: LayerVariable) -> str | None:
    a, b = torch.variable, jax.variable
    if find_matching_shape(torch.layer, a) != find_matching_shape(jax.layer, b):
        return f"shape {list(a.shape)} against {list(b.shape)} (kernels HWIO or [inputs, outputs])"
    if a.role != b.role and a.role not in _ANY_ROLE and b.role not in _ANY_ROLE:
        return f"a {a.role} against a {b.role}"
    if a.is_parameter != b.is_parameter:
        return "only one of the two is trained"
    return None
