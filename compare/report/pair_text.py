"""A user's own pair in words: the source of its models, accepted differences, and which variable is which."""

import re
from collections.abc import Sequence

from compare.base.interface import TRAIN
from compare.report.document import Table
from compare.report.sentences import count_noun
from compare.results.model import PairSpec, Spec

_NAMES = {"torch": "torch", "jax": "flax"}


def list_models(spec: Spec) -> list[str]:
    """Return the source of each model of a user's pair, empty for a built-in workload."""
    return [str(spec.model.get(backend, "unknown")) for backend in (spec.pair.sides if spec.pair else ())]


def make_lines(spec: Spec) -> list[str]:
    """Return what a reader must know of a user's pair, empty for a built-in workload."""
    pair = spec.pair
    if pair is None:
        return []
    said = [
        f"{side.framework} model: {model} (source SHA-256 {side.source_sha256[:12]})"
        for model, side in zip(list_models(spec), pair.sides.values(), strict=True)
    ]
    count = count_noun(len(pair.map), "variable")
    if len(pair.sides) == 1:
        (given,) = pair.sides
        other = next(each for each in _NAMES if each != given)
        said.append(
            f"only --{given} is given, so this model is compared with itself in different tunings ({count}, parameters "
            f"and buffers); to check a port, give --{other} too"
        )
    else:
        start = f"training starts from the weights of {_NAMES[pair.weights_from]}'s factory"
        said.append(f"{count} matched, parameters and buffers; {start}")
    said += [
        f"{layer} alone, on the same input and weights, does not compute the same on both sides"
        + (": the outputs have different shapes" if error is None else f" (relative error {error:.1e})")
        for layer, error in pair.different_alone.items()
    ]
    said += pair.beside
    for backend, side in pair.sides.items():
        if side.dropout:
            said.append(f"dropout at rate 0 in {_NAMES[backend]}: {', '.join(side.dropout)}")
        said += side.notes
    said += _compare_dropout(pair)
    return [*said, *([_describe_training(spec)] if spec.task == TRAIN else [])]


def _compare_dropout(pair: PairSpec) -> list[str]:
    """Return a line if the models drop out at different rates, which a run at rate 0 does not show."""
    rates = [sorted(_find_rates(side.dropout)) for side in pair.sides.values()]
    if len(rates) != 2 or rates[0] == rates[1]:
        return []
    names = [_NAMES[backend] for backend in pair.sides]
    written = [", ".join(each) or "none" for each in rates]
    return [
        f"dropout differs: rates {written[0]} in {names[0]}, {written[1]} in {names[1]}; both run at rate 0 here, and "
        "your own training is not the same"
    ]


def _find_rates(dropout: Sequence[str]) -> list[str]:
    found = (re.search(r" with p=([0-9.e+-]+)$", each) for each in dropout)
    return [match[1] for match in found if match and float(match[1])]


def _describe_training(spec: Spec) -> str:
    """Return optimizer, learning rate and loss in words."""
    optimizer = spec.optimizer
    extras = [
        f"{name.replace('_', ' ')} {optimizer[name]}"
        for name in ("momentum", "weight_decay", "clip_norm")
        if optimizer.get(name)
    ]
    smoothing = f" with label smoothing {spec.label_smoothing}" if spec.label_smoothing else ""
    settings = ", ".join([f"learning rate {optimizer.get('learning_rate')}", *extras])
    return f"both sides train with samestep's {optimizer.get('name')}, {settings}, {_name_losses(spec)}{smoothing}"


def _name_losses(spec: Spec) -> str:
    losses = spec.pair.losses if spec.pair else ()
    if "own" in losses:
        return "and each with the loss function of your own"
    return f"and the same loss{': ' if losses else ''}{', '.join(losses)}"


def make_table(spec: Spec) -> Table | None:
    """Return the table of torch's and flax's names, None for a built-in workload."""
    if spec.pair is None or len(spec.pair.sides) == 1:
        return None
    caption = "Parameters and buffers of the torch model, and their names in the flax model."
    return Table("map", caption, ("torch", "flax"), list(spec.pair.map.items()), prose=True, detail=True)
