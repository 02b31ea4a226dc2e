"""Compare the distributions that two models draw their initial values from.

A port that trains worse often differs only there. The certificate does not see it, because both models start from the
same weights.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compare.base.interface import Array
from compare.user_models.matching import Matching, VariablePair

SEEDS = (1, 2, 3)
"""The seeds of the draws that are compared."""

_KURTOSIS = {"uniform": 1.8, "truncated_normal": 2.366, "normal": 3.0}
_ENOUGH = 600  # values that tell families apart
_MOST = 2**16  # values of a draw that are looked at: more only take time
_TOLERANCE, _SIGMAS = 0.1, 5.0
_USUAL_SCALES = {1 / 6: "1/6", 1 / 3: "1/3", 2 / 3: "2/3", 1: "1", 2: "2"}
_RULES = {"kernel": "kernel_init", "bias": "bias_init", "scale": "scale_init", "embedding": "embedding_init"}


@dataclass(frozen=True)
class Distribution:
    """The distribution of a variable's initial values, from several draws.

    Attributes:
        family: `constant`, `uniform`, `truncated_normal`, `normal`, or `random` for too few values.
        mean, std: of all values.
        count: the number of values.
        kurtosis: the fourth moment over the squared variance.
        fan_in: the inputs of one output of its layer; 0 if the layer has no kernel.
    """

    family: str
    mean: float
    std: float
    count: int
    kurtosis: float
    fan_in: int

    def __str__(self) -> str:
        if self.family == "constant":
            return f"constant {self.mean:.3g}"
        if self.fan_in:
            return f"{self.family.replace('_', ' ')}, variance {_write_scale(self._scale)}/fan-in"
        return f"{self.family.replace('_', ' ')}, standard deviation {self.std:.2g}"

    @property
    def flax(self) -> str:
        """Flax's initialiser with this distribution, "" if there is none."""
        if self.family == "constant":
            return f"nn.initializers.constant({self.mean:.6g})"
        if self.fan_in and self.family != "random":
            return f'nn.initializers.variance_scaling({_write_scale(self._scale)}, "fan_in", "{self.family}")'
        return f"nn.initializers.normal({self.std:.3g})" if self.family == "normal" else ""

    @property
    def torch(self) -> str:
        """Torch's initialiser of a tensor with this distribution, "" if there is none."""
        if self.family == "constant":
            return f"nn.init.constant_(TENSOR, {self.mean:.6g})"
        if self.family == "uniform":
            return f"nn.init.uniform_(TENSOR, {-self.std * math.sqrt(3):.4g}, {self.std * math.sqrt(3):.4g})"
        return f"nn.init.normal_(TENSOR, std={self.std:.4g})" if self.family == "normal" else ""

    @property
    def _scale(self) -> float:
        return self.std**2 * self.fan_in

    def is_like(self, other: "Distribution") -> bool:
        """Tell whether both are the same distribution, as far as so many values can tell."""
        families = {self.family, other.family}
        if "constant" in families:
            return len(families) == 1 and math.isclose(self.mean, other.mean, rel_tol=1e-5, abs_tol=1e-12)
        if "random" not in families and len(families) > 1:
            return False
        errors = [(each.kurtosis - 1) / (4 * each.count) for each in (self, other)]
        allowed = max(_TOLERANCE, _SIGMAS * math.sqrt(sum(errors)))
        apart = abs(self.mean - other.mean) / math.hypot(*(each.std / math.sqrt(each.count) for each in (self, other)))
        return abs(math.log(self.std / other.std)) <= allowed and apart <= 2 * _SIGMAS


def describe(draws: Sequence[Array], fan_in: int) -> Distribution:
    """Return the distribution of a variable from its values at several seeds, or from a sample of many values."""
    values = np.concatenate([_sample(np.ravel(draw), seed).astype(np.float64) for seed, draw in enumerate(draws)])
    mean, std = float(values.mean()), float(values.std())
    if std <= 1e-6 * max(abs(mean), 1e-6):
        return Distribution("constant", mean, 0.0, values.size, 1.0, fan_in)
    kurtosis = float(np.square(np.square((values - mean) / std)).mean())
    family = "random"
    if values.size >= _ENOUGH:
        family = min(_KURTOSIS, key=lambda name: abs(_KURTOSIS[name] - kurtosis))
    return Distribution(family, mean, std, values.size, kurtosis, fan_in)


def _sample(values: Array, seed: int) -> Array:
    if values.size <= _MOST:
        return values
    return values[np.random.default_rng(seed).integers(values.size, size=_MOST)]


def compare_initial_values(
    matched: Matching, torch: Sequence[Mapping[str, Array]], jax: Sequence[Mapping[str, Array]]
) -> list[str]:
    """Return a line with a cure for each kind of difference. `torch` and `jax` are arrays by neutral name, by seed."""
    fans = {pair.layer: _count_inputs(pair) for pair in matched.variables if pair.torch.role == "kernel"}
    groups = defaultdict[tuple[str, str, str], list[tuple[VariablePair, Distribution, Distribution]]](list)
    for pair in matched.variables:
        if not pair.torch.is_parameter:
            continue
        fan_in = fans.get(pair.layer, 0)
        a, b = (describe([draw[pair.name] for draw in draws], fan_in) for draws in (torch, jax))
        if not a.is_like(b):
            groups[pair.torch.role, str(a), str(b)].append((pair, a, b))
    return [_write(*key, found) for key, found in groups.items()]


def _count_inputs(pair: VariablePair) -> int:
    shape = pair.torch.shape
    return math.prod(shape[:-1])


def _write(role: str, torch: str, jax: str, found: Sequence[tuple[VariablePair, Distribution, Distribution]]) -> str:
    pair, of_torch, of_jax = found[0]
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    cures = list[str]()
    if of_torch.flax and role in _RULES:
        cures.append(f"in flax {_RULES[role]}={of_torch.flax}")
    if of_jax.torch:
        cures.append(f"in torch {of_jax.torch.replace('TENSOR', f'model.{pair.torch.own}')}")
    cure = f"; to make them equal: {', or '.join(cures)}" if cures else ""
    return f"initial values differ: {pair.name}{others}: torch {torch}; flax {jax}{cure}"


def _write_scale(scale: float) -> str:
    usual = (text for value, text in _USUAL_SCALES.items() if math.isclose(scale, value, rel_tol=0.1))
    return next(usual, f"{scale:.2g}")
