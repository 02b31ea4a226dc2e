"""A user's own pair in words: where its models come from, what was accepted of them, which variable is which."""

from collections.abc import Mapping
from typing import Any

from compare.report.document import Table
from compare.report.sentences import counted

_NAMES = {"torch": "torch", "jax": "flax"}


def models(result: Mapping[str, Any]) -> list[str]:
    """Return where the models of a result's pair come from, a side each; none where it is of a built-in workload."""
    spec = result["spec"]
    return [str(spec.get("model", {}).get(backend, "unknown")) for backend in spec.get("pair", {}).get("sides", ())]


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know of the pair of a result; none where it is of a built-in workload."""
    pair = result["spec"].get("pair")
    if pair is None:
        return []
    found = [
        f"{side['framework']} model: {model} (source SHA-256 {side['source_sha256'][:12]})"
        for model, side in zip(models(result), pair["sides"].values(), strict=True)
    ]
    found.append(
        f"{counted(len(pair['map']), 'variable')} matched, parameters and buffers; training starts from the weights of "
        f"{_NAMES[pair['weights_from']]}'s factory"
    )
    found += [
        f"{layer} alone, on the same input and weights, does not compute the same on both sides"
        + (": the outputs have different shapes" if error is None else f" (relative error {error:.1e})")
        for layer, error in pair["different_alone"].items()
    ]
    for backend, side in pair["sides"].items():
        if side["dropout"]:
            found.append(f"dropout at rate 0 in {_NAMES[backend]}: {', '.join(side['dropout'])}")
        found += side["notes"]
    return found


def table(result: Mapping[str, Any]) -> Table | None:
    """Return the table of torch's names and flax's; None where the result is of a built-in workload."""
    pair = result["spec"].get("pair")
    if pair is None:
        return None
    caption = "Which parameter or buffer of the torch model is which of the flax model."
    return Table("map", caption, ("torch", "flax"), list(pair["map"].items()), prose=True, detail=True)
