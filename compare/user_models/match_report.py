"""Keep the findings about a user's pair, and explain a failed certificate with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.certificate import Certificate
from compare.base.commands import UserFiles
from compare.base.trace import Trace
from compare.user_models import diagnosis
from compare.user_models.diagnosis import BETWEEN, Advice, Difference
from compare.user_models.matching import Matching

_LAYERS_SHOWN = 3
_SEEN_ALONE = ("kernel", "stride", "padding", "dilation", "groups", "output_padding")
"""Settings whose effect shows in a layer's output alone."""


@dataclass(frozen=True)
class Pairing:
    """The findings about a pair before it is certified.

    Attributes:
        traces: by backend.
        matching: which layer of one side is which of the other.
        different: torch's paths of matched layers that compute different outputs alone, on the same random input and
            weights, with their relative error (None: the outputs differ in shape).
        resized: the match of the same models at the other image sizes of a certificate.
        weights_from: the backend whose factory gives the initial weights.
        allowed: names of the accepted differences.
        mapped: how many variables the user's map names.
        code: the user's files behind each model by backend, empty where they were not listed.
        beside: differences of initial values, which the certificate does not see, each with a cure.
        losses: the loss of each output in words.
    """

    traces: Mapping[str, Trace]
    matching: Matching
    different: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    resized: tuple[Matching, ...] = ()
    weights_from: str = "torch"
    allowed: tuple[str, ...] = ()
    mapped: int = 0
    code: Mapping[str, UserFiles] = field(default_factory=dict[str, UserFiles])
    beside: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()

    @property
    def is_alone(self) -> bool:
        """Whether there is one model, which is compared with itself."""
        return len(self.traces) == 1

    @property
    def unlike(self) -> frozenset[str]:
        """Torch's paths of matched layers: one side may take rows, and the other images of one pixel.

        They are of two kinds, a dense layer and a 1x1 convolution, or their shapes say so.
        """
        return frozenset(
            torch.path
            for torch, jax in self.matching.layers
            if torch.role != jax.role or any(map(_differ_by_ones, (torch.input, torch.output), (jax.input, jax.output)))
        )

    def explain(self, certificate: Certificate) -> Certificate:
        """Return a certificate with notes about the first layer that failed: its settings and the remedy.

        If the settings of that layer are equal, the notes show the nearest layer before it with different ones.
        """
        notes, cause = [*self.matching.remarks], certificate.cause
        if not certificate.passed and not self.is_alone:
            here, before = self._find_differences(certificate)
            notes += [line for difference in here or before[-1:] for line in _write_settings(difference)]
            if here:
                cause = here[0].advice[0].cause
            notes += self.list_differences()
            if self.mapped:
                notes.append(f"the weights map names {self.mapped} variables: an entry of it may be wrong")
        return replace(certificate, cause=cause, notes=(*notes, *certificate.notes))

    def list_differences(self) -> list[str]:
        """Return every difference between matched layers, each with its cure: harmful ones first, then harmless ones.

        Layers with the same difference share a line.
        """
        groups: dict[tuple[bool, str], list[str]] = {}
        same: set[tuple[str, str]] = set()  # written in another way, and alone each layer computes the same
        for matching in (self.matching, *self.resized):  # flax's SAME pads differently at another image size
            equal = self._list_equal_alone() if matching is self.matching else frozenset[str]()
            for difference in diagnosis.find_differences(matching):
                for advice in difference.advice:
                    if difference.torch in equal and advice.setting in _SEEN_ALONE:
                        same.add((difference.torch, advice.sentence))
                    if (difference.torch, advice.sentence) in same:
                        continue
                    if advice.setting == "running_variance" and RUNNING_VARIANCE in self.allowed:
                        continue
                    layers = groups.setdefault((advice.is_harmless, advice.sentence), [])
                    if difference.torch not in layers:
                        layers.append(difference.torch)
        if not groups:
            return []
        count = sum(not is_harmless for is_harmless, _ in groups)
        lines = [f"all differences between matched layers, {count} harmful and {len(groups) - count} harmless:"]
        for (is_harmless, sentence), layers in sorted(groups.items(), key=lambda each: each[0][0]):
            places = ", ".join(layers[:_LAYERS_SHOWN]) + (
                f" and {len(layers) - _LAYERS_SHOWN} more" * (len(layers) > _LAYERS_SHOWN)
            )
            lines.append(f"  {'harmless' if is_harmless else 'harmful'}, {places}: {sentence}")
        return lines

    def _list_equal_alone(self) -> frozenset[str]:
        """Return torch's paths of the layers that were tried alone and compute the same on both sides."""
        return frozenset(
            torch.path
            for torch, jax in self.matching.layers
            if torch.is_module and jax.is_module and not torch.inside and torch.path not in self.different
        )

    def _find_differences(self, certificate: Certificate) -> tuple[list[Difference], list[Difference]]:
        """Return the differences in the first failed layer that may explain it, and those in the layers before it."""
        numbers = {layer.path: number for number, (layer, _) in enumerate(self.matching.layers)}
        failed = _layer_number(certificate.tensor or "", numbers)
        differences: dict[str, Difference] = {}
        for matching in (self.matching, *self.resized):  # flax's SAME pads differently at another image size
            for difference in diagnosis.find_differences(matching):
                differences.setdefault(difference.torch, difference)
        ordered = sorted((numbers.get(path, len(numbers)), path) for path in differences)
        candidates = [differences[path] for number, path in ordered if number == failed]
        here = [
            replace(difference, advice=advice)
            for difference in candidates
            if (advice := self._explanatory_advice(difference, certificate))
        ]
        before = [differences[path] for number, path in ordered if number < failed]
        return here, [difference for difference in before if not difference.is_harmless]

    def _explanatory_advice(self, difference: Difference, certificate: Certificate) -> tuple[Advice, ...]:
        """Return the advice that may explain the failure: a setting explains only the tensors that it changes."""
        tensor = certificate.tensor or ""
        is_statistic = tensor.endswith((".mean", ".var")) and "/activation/" not in tensor
        is_input = "/activation/" in tensor and tensor.endswith(".input")
        explains = {
            BETWEEN: not is_statistic,
            "momentum": is_statistic or tensor.startswith("evaluation/"),
            "running_variance": RUNNING_VARIANCE not in self.allowed and tensor.endswith(".var"),
            "fast_variance": all(gate.passed for gate in certificate.gates if gate.name == "semantic"),
        }
        return tuple(each for each in difference.advice if explains.get(each.setting, not is_input))

    def to_json(self) -> dict[str, Any]:
        """Return the pair's entry in the result file."""
        return {
            "map": self.matching.to_map(),
            "weights_from": self.weights_from,
            "allowed": list(self.allowed),
            "different_alone": dict(self.different),
            "beside": list(self.beside),
            "losses": list(self.losses),
            "sides": {
                backend: {
                    "framework": trace.framework,
                    "source_sha256": trace.source_sha256,
                    "dropout": list(trace.dropout),
                    "notes": list(trace.notes),
                }
                for backend, trace in self.traces.items()
            },
        }


def _differ_by_ones(one: Sequence[int], other: Sequence[int]) -> bool:
    """Tell whether two shapes differ in axes of length 1 only."""
    lengths = [[length for length in shape[1:] if length != 1] for shape in (one, other)]
    return len(one) != len(other) and one[:1] == other[:1] and lengths[0] == lengths[1]


def _layer_number(tensor: str, numbers: Mapping[str, int]) -> int:
    """Return the number of the layer that has a certificate's tensor, or one past the last if no layer has it."""
    stage, _, rest = tensor.partition("/")
    name = rest if stage == "delta" else rest.partition("/")[2]
    fitting = [path for path in numbers if name == path or name.startswith((f"{path}.", f"{path}#"))]
    return numbers[max(fitting, key=len)] if fitting else len(numbers)


def _write_settings(difference: Difference) -> Iterator[str]:
    """Yield lines with the settings of both layers, and the changes that would make them equal."""
    yield f"torch's {difference.torch} against flax's {difference.jax}:"
    for row in difference.rows:
        mark = "   <- differs" if row.differs else ""
        yield f"  {row.setting}: torch {row.torch}, flax {row.jax}{mark}"
    for advice in difference.advice:
        yield f"  {advice.sentence}"
