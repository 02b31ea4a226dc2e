"""Compare the settings of matched layers, name each difference, and suggest the code that removes it."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from compare.base.trace import BY_A_FUNCTION, FACTOR, Layer, name_factor
from compare.user_models import code_suggestions
from compare.user_models.alignment import ACTIVATION
from compare.user_models.code_suggestions import format_number, format_value, parse_pool
from compare.user_models.matching import Matching

HARMLESS = ("running_variance", "fast_variance")
"""Settings that leave training the same. A running variance must still be allowed, a fast one changes the rounding."""

BETWEEN = "before it"
"""The setting's name for the functions between the previous layers and this one."""

_MOVES = ("reshape", "slice", "transpose", "concatenate", "matmul", "einsum", "stack")
_SAME_FACTOR = 1e-4  # words have six digits each


@dataclass(frozen=True)
class Row:
    """One setting of two matched layers as each side has it (`-` if it has none)."""

    setting: str
    torch: str
    jax: str
    differs: bool


@dataclass(frozen=True)
class Advice:
    """One setting that differs, and the code that makes the layers equal.

    Attributes:
        setting: its name.
        cause: the difference in words.
        flax: code that gives flax torch's setting, None if there is none.
        torch: code that gives torch flax's setting, None if there is none.
        is_harmless: whether training stays the same (`HARMLESS`).
    """

    setting: str
    cause: str
    flax: str | None
    torch: str | None
    is_harmless: bool = False

    @property
    def sentence(self) -> str:
        """The cause, and the changes that would make the layers equal, in one sentence."""
        changes = [f"{text} in {side}" for side, text in (("flax", self.flax), ("torch", self.torch)) if text]
        return f"{self.cause}; {'equal with ' + ', or '.join(changes) if changes else 'no setting makes them equal'}"


@dataclass(frozen=True)
class Difference:
    """Two matched layers with different settings, by their own paths.

    The path `logits` stands for the functions after all layers.
    """

    torch: str
    jax: str
    rows: tuple[Row, ...]
    advice: tuple[Advice, ...]

    @property
    def is_harmless(self) -> bool:
        """Whether training stays the same."""
        return all(advice.is_harmless for advice in self.advice)


def list_settings(torch: Layer, jax: Layer) -> list[Row]:
    """Return a row for every setting of two matched layers, and one for the functions before them."""
    names = list(dict.fromkeys([*torch.settings, *jax.settings]))
    rows = [Row(name, _format(torch, name), _format(jax, name), _differs(torch, jax, name)) for name in names]
    return [*rows, _functions_row(torch.between, jax.between)]


def advise(torch: Layer, jax: Layer) -> list[Advice]:
    """Return advice for every difference: first functions before the layer, then settings, harmless ones last."""
    names = [name for name in torch.settings if _differs(torch, jax, name)]
    advice = [
        *_advise_on_functions(torch.between, jax.between),
        *(_advise_on_setting(name, torch, jax) for name in names),
    ]
    return sorted(advice, key=lambda each: each.is_harmless)


def find_differences(matching: Matching) -> list[Difference]:
    """Return all matched layers with different settings in torch's execution order, harmless ones included."""
    pairs = _drop_outer_functions(matching)
    layers = [Difference(t.path, j.path, tuple(list_settings(t, j)), tuple(advise(t, j))) for t, j in pairs]
    rows, advice = (_functions_row(*matching.ends),), tuple(_advise_on_functions(*matching.ends))
    return [each for each in (*layers, Difference("logits", "logits", rows, advice)) if each.advice]


def _drop_outer_functions(matching: Matching) -> Iterator[tuple[Layer, Layer]]:
    """Yield matched layers. Free parameters in modules around different layers have no functions before them."""
    partners = {j.path: t.path for t, j in matching.layers}
    for torch, jax in matching.layers:
        is_alike = set(torch.after) == {partners.get(path, path) for path in jax.after}
        is_free = torch.role == jax.role == "parameters"
        yield (replace(torch, between=()), replace(jax, between=())) if is_free and not is_alike else (torch, jax)


def _format(layer: Layer, name: str) -> str:
    if name not in layer.settings:
        return "-"
    value = format_value(layer.settings[name])
    written = format_value(layer.written[name]) if name in layer.written else value
    return value if written == value else f"{value} (written {written})"


def _differs(torch: Layer, jax: Layer, name: str) -> bool:
    if name not in torch.settings or name not in jax.settings:
        return False
    a, b = _to_lists(torch.settings[name]), _to_lists(jax.settings[name])
    if isinstance(a, float) and isinstance(b, float):
        return not math.isclose(a, b, rel_tol=1e-9)
    if name == "padding_mode" and not any(_is_padded(layer) for layer in (torch, jax)):
        return False
    if name == "dilation" and all(set(layer.settings.get("kernel", (0,))) == {1} for layer in (torch, jax)):
        return False
    return a != b


def _to_lists(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    return [_to_lists(item) for item in cast("Sequence[Any]", value)]


def _is_padded(layer: Layer) -> bool:
    return any(edge for sides in layer.settings.get("padding", ()) for edge in sides)


def _advise_on_setting(name: str, torch: Layer, jax: Layer) -> Advice:
    a, b = (format_value(layer.settings[name]) for layer in (torch, jax))
    both_values = f"{name.replace('_', ' ')} is {a} in torch and {b} in flax"
    causes = {
        "padding": lambda: _explain_padding(torch, jax, both_values),
        "momentum": lambda: _explain_momentum(torch, jax),
        "epsilon": lambda: both_values + (" (each framework's own default)" if (a, b) == ("1e-5", "1e-6") else ""),
        "running_variance": lambda: (
            f"the running variance is {a} in torch and {b} in flax (n/(n-1)): training is the same, evaluation is not "
            "(--allow running-variance accepts it)"
        ),
        "fast_variance": lambda: (
            f"flax {'computes' if jax.settings[name] else 'does not compute'} the variance as E[x^2] - E[x]^2, "
            "which rounds differently"
        ),
        "statistics": lambda: f"in training torch normalises by {a} statistics and flax by {b} ones",
    }
    in_flax, in_torch = (layer.written.get(name) != BY_A_FUNCTION for layer in (jax, torch))
    return Advice(
        name,
        causes[name]() if name in causes else both_values,
        code_suggestions.write_in_flax(name, torch) if in_flax else None,
        code_suggestions.write_in_torch(name, jax) if in_torch else None,
        name in HARMLESS,
    )


def _explain_padding(torch: Layer, jax: Layer, both_values: str) -> str:
    if jax.written.get("padding") != "SAME" or torch.role != "convolution":
        return both_values
    kernel, stride = ("x".join(map(str, jax.settings[name])) for name in ("kernel", "stride"))
    return (
        f"SAME pads a {kernel} kernel of stride {stride} by {format_value(jax.settings['padding'])} here (before and "
        f"after, as little as the image's size needs), torch by {format_value(torch.settings['padding'])}"
    )


def _explain_momentum(torch: Layer, jax: Layer) -> str:
    a, b = torch.settings["momentum"], jax.settings["momentum"]
    if a is None or b is None:
        return "one side uses a cumulative average instead of a momentum"
    same_number = jax.written.get("momentum") == a
    return (
        f"momentum is the new batch's weight in torch, the old value's in flax: torch's {format_number(a)} is "
        f"flax's {format_number(1 - a)}, and flax has {format_number(1 - b)}"
        f"{' (the same number was copied)' if same_number else ''}"
    )


def list_shared_functions(torch: Layer, jax: Layer) -> list[str]:
    """Return the activations and pools that stand before both layers."""
    return [word for word in torch.between if word in jax.between and (ACTIVATION.fullmatch(word) or parse_pool(word))]


def _functions_row(torch: Sequence[str], jax: Sequence[str]) -> Row:
    cells = [", ".join(functions) or "-" for functions in (torch, jax)]
    return Row(BETWEEN, cells[0], cells[1], any(_compare_functions(torch, jax)))


def _compare_functions(torch: Sequence[str], jax: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the functions that only torch has and that only flax has, without those that move or add values.

    Compare constant factors only if all else is alike.
    """
    sides = [
        Counter(_normalise(word) for word in _activations_and_pools(side, other.count("mean") - side.count("mean")))
        for side, other in ((torch, jax), (jax, torch))
    ]
    only_torch, only_flax = list((sides[0] - sides[1]).elements()), list((sides[1] - sides[0]).elements())
    return (only_torch, only_flax) if only_torch or only_flax else _compare_factors(torch, jax)


def _compare_factors(torch: Sequence[str], jax: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the constant factor of each side if they differ, and if all else that computes is alike."""
    others, factors = list[Counter[str]](), list[float]()
    for side in (torch, jax):
        others.append(Counter(word for word in side if word not in _MOVES and not word.startswith(FACTOR)))
        factors.append(math.prod(float(word.removeprefix(FACTOR)) for word in side if word.startswith(FACTOR)))
    if others[0] != others[1] or math.isclose(*factors, rel_tol=_SAME_FACTOR):
        return [], []
    return [name_factor(factors[0])], [name_factor(factors[1])]


def _activations_and_pools(side: Sequence[str], means: int) -> list[str]:
    """Return activations and pools, without the last `means` average pools.

    Those stand for means of whole images on the other side.
    """
    functions = [word for word in side if parse_pool(word) or ACTIVATION.fullmatch(word)]
    averages = [place for place, word in enumerate(functions) if (parse_pool(word) or ("",))[0] == "average"]
    global_pools = averages[-means:] if means > 0 else []
    return [word for place, word in enumerate(functions) if place not in global_pools]


def _normalise(word: str) -> str:
    pool = parse_pool(word)
    if pool is None:
        return word
    counted = ", padding not counted" if "not counted" in word else ""
    return f"{pool[0]}-pool({', '.join(format_value(part) for part in pool[1:])}{counted})"


def _advise_on_functions(torch: Sequence[str], jax: Sequence[str]) -> Iterator[Advice]:
    only_torch, only_flax = _compare_functions(torch, jax)
    if any(word.startswith(FACTOR) for word in only_torch):
        a, b = (f"{float(words[0].removeprefix(FACTOR)):.5g}" for words in (only_torch, only_flax))
        yield Advice(BETWEEN, f"torch multiplies by {a}, flax by {b}", None, None)
        return
    for word in only_torch:
        flax = code_suggestions.write_function_in_flax(word)
        other = _find_counterpart(word, only_flax)
        if other is None:
            yield Advice(BETWEEN, f"torch has {word}, flax has none", flax, None)
            continue
        only_flax.remove(other)
        torch_code = code_suggestions.write_function_in_torch(other)
        yield Advice(BETWEEN, f"torch has {word}, flax has {other}", flax, torch_code)
    for word in only_flax:
        torch_code = code_suggestions.write_function_in_torch(word)
        yield Advice(BETWEEN, f"flax has {word}, torch has none", None, torch_code)


def _find_counterpart(word: str, others: Sequence[str]) -> str | None:
    """Return the first function of the same name, or else the first of the same kind (pool or activation)."""
    same_name = (other for other in others if other.partition("(")[0] == word.partition("(")[0])
    same_kind = (other for other in others if bool(parse_pool(other)) == bool(parse_pool(word)))
    return next(same_name, None) or next(same_kind, None)
