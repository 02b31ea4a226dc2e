"""A user's own pair in words: the source of its models, accepted differences, and which variable is which."""

from compare.report.document import Table
from compare.report.sentences import count_noun
from compare.results.model import Spec

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
        said.append(f"one model, compared with itself in different tunings: {count}, parameters and buffers")
    else:
        start = f"training starts from the weights of {_NAMES[pair.weights_from]}'s factory"
        said.append(f"{count} matched, parameters and buffers; {start}")
    said += [
        f"{layer} alone, on the same input and weights, does not compute the same on both sides"
        + (": the outputs have different shapes" if error is None else f" (relative error {error:.1e})")
        for layer, error in pair.different_alone.items()
    ]
    for backend, side in pair.sides.items():
        if side.dropout:
            said.append(f"dropout at rate 0 in {_NAMES[backend]}: {', '.join(side.dropout)}")
        said += side.notes
    return said


def make_table(spec: Spec) -> Table | None:
    """Return the table of torch's and flax's names, None for a built-in workload."""
    if spec.pair is None or len(spec.pair.sides) == 1:
        return None
    caption = "Parameters and buffers of the torch model, and their names in the flax model."
    return Table("map", caption, ("torch", "flax"), list(spec.pair.map.items()), prose=True, detail=True)
