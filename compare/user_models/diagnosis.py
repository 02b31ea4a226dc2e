"""The settings of two matched layers side by side, why they compute different things, and what would change that."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from compare.base.trace import Layer
from compare.user_models import code_suggestions
from compare.user_models.matching import Matching

HARMLESS = ("running_variance", "fast_variance")
"""Settings that leave training the same: the one must still be allowed by name, the other is a matter of rounding."""

BETWEEN = "before it"
_FUNCTION = re.compile(
    r"relu6?|leaky-relu|elu|selu|celu|silu|mish|gelu\((tanh|exact)\)|(log)?sigmoid|tanh|softplus|(log_)?softmax|"
    r"hard(swish|sigmoid|tanh)"
)


@dataclass(frozen=True)
class Row:
    """One setting of two matched layers as each side has it (`-`: it has none)."""

    setting: str
    torch: str
    jax: str
    differs: bool


@dataclass(frozen=True)
class Advice:
    """Why one setting makes a difference, and what to write in either framework to have the other's, None if nothing.

    `is_harmless` if training stays the same (`HARMLESS`).
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
    """Two matched layers whose settings differ, by their own paths (`logits`: what comes after all layers)."""

    torch: str
    jax: str
    rows: tuple[Row, ...]
    advice: tuple[Advice, ...]

    @property
    def is_harmless(self) -> bool:
        """Whether training stays the same."""
        return all(each.is_harmless for each in self.advice)


def table(torch: Layer, jax: Layer) -> list[Row]:
    """Return every setting of two matched layers, as written where that is another way, and what lies before them."""
    names = list(dict.fromkeys([*torch.settings, *jax.settings]))
    rows = [Row(name, _shown(torch, name), _shown(jax, name), _differs(torch, jax, name)) for name in names]
    return [*rows, _functions_row(torch.between, jax.between)]


def advice(torch: Layer, jax: Layer) -> list[Advice]:
    """Return one piece of advice for every difference, functions before the layer first, harmless ones last."""
    names = [name for name in torch.settings if _differs(torch, jax, name)]
    found = [*_on_functions(torch.between, jax.between), *(_on_setting(name, torch, jax) for name in names)]
    return sorted(found, key=lambda each: each.is_harmless)


def differences(matching: Matching) -> list[Difference]:
    """Return all matched layers whose settings differ, in torch's execution order, harmless ones among them."""
    found = [Difference(t.path, j.path, tuple(table(t, j)), tuple(advice(t, j))) for t, j in matching.layers]
    at_the_end = Difference("logits", "logits", (_functions_row(*matching.ends),), tuple(_on_functions(*matching.ends)))
    return [each for each in (*found, at_the_end) if each.advice]


def _shown(layer: Layer, name: str) -> str:
    if name not in layer.settings:
        return "-"
    value = code_suggestions.plain(layer.settings[name])
    written = code_suggestions.plain(layer.written[name]) if name in layer.written else value
    return value if written == value else f"{value} (written {written})"


def _differs(torch: Layer, jax: Layer, name: str) -> bool:
    if name not in torch.settings or name not in jax.settings:
        return False
    a, b = _listed(torch.settings[name]), _listed(jax.settings[name])
    if isinstance(a, float) and isinstance(b, float):
        return not math.isclose(a, b, rel_tol=1e-9)
    if name == "padding_mode" and not any(_is_padded(each) for each in (torch, jax)):
        return False
    if name == "dilation" and all(set(each.settings.get("kernel", (0,))) == {1} for each in (torch, jax)):
        return False
    return a != b


def _listed(value: Any) -> Any:
    return [_listed(each) for each in cast("Sequence[Any]", value)] if isinstance(value, (list, tuple)) else value


def _is_padded(layer: Layer) -> bool:
    return any(edge for sides in layer.settings.get("padding", ()) for edge in sides)


def _on_setting(name: str, torch: Layer, jax: Layer) -> Advice:
    a, b = (code_suggestions.plain(each.settings[name]) for each in (torch, jax))
    plain = f"{name.replace('_', ' ')} is {a} in torch and {b} in flax"
    causes = {
        "padding": lambda: _padding(torch, jax, plain),
        "momentum": lambda: _momentum(torch, jax),
        "epsilon": lambda: plain + (" (each framework's own default)" if (a, b) == ("1e-5", "1e-6") else ""),
        "running_variance": lambda: (
            f"the running variance is {a} in torch and {b} in flax (n/(n-1)): training is the same, evaluation is not "
            "(--allow running-variance accepts it)"
        ),
        "fast_variance": lambda: (
            f"flax {'takes' if jax.settings[name] else 'does not take'} the variance as E[x^2] - "
            "E[x]^2, which rounds differently"
        ),
        "statistics": lambda: f"in training torch normalises by {a} statistics and flax by {b} ones",
    }
    cause = causes[name]() if name in causes else plain
    return Advice(
        name, cause, code_suggestions.in_flax(name, torch), code_suggestions.in_torch(name, jax), name in HARMLESS
    )


def _padding(torch: Layer, jax: Layer, plain: str) -> str:
    if jax.written.get("padding") != "SAME" or torch.role != "convolution":
        return plain
    kernel, stride = ("x".join(map(str, jax.settings[name])) for name in ("kernel", "stride"))
    return (
        f"SAME pads a {kernel} kernel of stride {stride} by {code_suggestions.plain(jax.settings['padding'])} here (before and "
        f"after, as little as the image's size asks for), torch by {code_suggestions.plain(torch.settings['padding'])}"
    )


def _momentum(torch: Layer, jax: Layer) -> str:
    new, other = torch.settings["momentum"], jax.settings["momentum"]
    if new is None or other is None:
        return "one side keeps a cumulative average in place of a momentum"
    carried = jax.written.get("momentum") == new
    return (
        f"momentum is the new batch's weight in torch, the old value's in flax: torch's {code_suggestions.number(new)} is "
        f"flax's {code_suggestions.number(1 - new)}, and flax has {code_suggestions.number(1 - other)}"
        f"{' (the same number, carried over as it was)' if carried else ''}"
    )


def _functions_row(torch: Sequence[str], jax: Sequence[str]) -> Row:
    said = [", ".join(each) or "-" for each in (torch, jax)]
    return Row(BETWEEN, said[0], said[1], any(_only(torch, jax)))


def _only(torch: Sequence[str], jax: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the functions that only torch has, and only flax; what merely moves or adds values is left out."""
    sides = [
        Counter(_canonical(word) for word in _counted(side, other.count("mean") - side.count("mean")))
        for side, other in ((torch, jax), (jax, torch))
    ]
    return list((sides[0] - sides[1]).elements()), list((sides[1] - sides[0]).elements())


def _counted(side: Sequence[str], means: int) -> list[str]:
    """Return the functions that count; the last average pools, `means` of them, are means of whole images elsewhere."""
    found = [word for word in side if code_suggestions.pooling(word) or _FUNCTION.fullmatch(word)]
    averages = [place for place, word in enumerate(found) if (code_suggestions.pooling(word) or ("",))[0] == "average"]
    whole = averages[-means:] if means > 0 else []
    return [word for place, word in enumerate(found) if place not in whole]


def _canonical(word: str) -> str:
    pool = code_suggestions.pooling(word)
    if pool is None:
        return word
    counted = ", padding not counted" if "not counted" in word else ""
    return f"{pool[0]}-pool({', '.join(code_suggestions.plain(each) for each in pool[1:])}{counted})"


def _on_functions(torch: Sequence[str], jax: Sequence[str]) -> Iterator[Advice]:
    only = _only(torch, jax)
    rest = list(only[1])
    for word in only[0]:
        other = next((each for each in rest if each.partition("(")[0] == word.partition("(")[0]), None)
        other = other or next(
            (each for each in rest if bool(code_suggestions.pooling(each)) == bool(code_suggestions.pooling(word))),
            None,
        )
        if other is None:
            yield Advice(BETWEEN, f"torch has {word}, flax has none", code_suggestions.function_in_flax(word), None)
            continue
        rest.remove(other)
        flax, back = code_suggestions.function_in_flax(word), code_suggestions.function_in_torch(other)
        yield Advice(BETWEEN, f"torch has {word}, flax has {other}", flax, back)
    for word in rest:
        yield Advice(BETWEEN, f"flax has {word}, torch has none", None, code_suggestions.function_in_torch(word))
