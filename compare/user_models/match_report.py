"""Keep the findings about a user's pair, and explain a failed certificate with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compare.agreement.allowances import RUNNING_VARIANCE, find_rows
from compare.agreement.certificate import Certificate
from compare.agreement.likely_causes import is_float32_rounding
from compare.base.commands import UserFiles
from compare.base.trace import Trace
from compare.user_models import diagnosis
from compare.user_models.diagnosis import BETWEEN, Advice, Difference
from compare.user_models.matching import Matching

_LAYERS_SHOWN = 3
_CAST = (
    "computes in float32 on one side: a cast or a table in it; equal with "
    "x.astype(jnp.promote_types(x.dtype, jnp.float32)) in flax instead of x.astype(jnp.float32), or "
    "x.to(torch.promote_types(x.dtype, torch.float32)) in torch instead of x.float()"
)
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
        """Torch's paths of matched layers: one side may take rows, and the other images or sequences of them.

        They are of two kinds, a dense layer and a 1x1 convolution, or their shapes say so.
        """
        return frozenset(
            torch.path
            for torch, jax in self.matching.layers
            if torch.role != jax.role or any(map(_are_same_rows, (torch.input, torch.output), (jax.input, jax.output)))
        )

    def explain(self, certificate: Certificate) -> Certificate:
        """Return a certificate with repairs, and with notes about the first layer that failed: its settings.

        If the settings of that layer are equal, the notes show the nearest layer before it with different ones.
        """
        if certificate.passed or self.is_alone:
            return replace(certificate, notes=(*self.matching.remarks, *certificate.notes))
        here, before = self._find_differences(certificate)
        blamed = None if here else self._blame_cast(certificate) or self._blame_layer(certificate)
        cause = here[0].advice[0].cause if here else blamed or certificate.cause
        repairs = list[str]()
        notes = [line for difference in here or before[-1:] for line in _write_settings(difference)]
        notes += [] if here else self._name_functions(certificate.tensor or "")
        for advice, line in self._group_differences():
            if advice.setting == "fast_variance" and advice.cause != cause:
                notes.append(f"harmless, {line}")
            else:
                repairs.append(line)
        if self.mapped:
            notes.append(f"the weights map names {self.mapped} variables: an entry of it may be wrong")
        return replace(
            certificate,
            cause=cause,
            repairs=tuple(sorted(repairs, key=lambda line: cause is None or cause not in line)),
            notes=(*self.matching.remarks, *notes, *certificate.notes),
        )

    def list_differences(self) -> list[str]:
        """Return every difference between matched layers, each with its cure, harmful ones first."""
        lines = [
            f"  {'harmless' if advice.is_harmless else 'harmful'}, {line}" for advice, line in self._group_differences()
        ]
        count = sum(line.startswith("  harmful, ") for line in lines)
        head = f"all differences between matched layers, {count} harmful and {len(lines) - count} harmless:"
        return [head, *lines] if lines else []

    def _group_differences(self) -> list[tuple[Advice, str]]:
        """Return every difference once, with its layers and its cure in words. Harmless ones come last."""
        groups: dict[Advice, list[str]] = {}
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
                    layers = groups.setdefault(advice, [])
                    if difference.torch not in layers:
                        layers.append(difference.torch)
        return [
            (advice, f"{_name_places(layers)}: {advice.sentence}")
            for advice, layers in sorted(groups.items(), key=lambda group: group[0].is_harmless)
        ]

    def _list_equal_alone(self) -> frozenset[str]:
        """Return torch's paths of the layers that were tried alone and compute the same on both sides."""
        return frozenset(
            torch.path
            for torch, jax in self.matching.layers
            if torch.is_module and jax.is_module and not torch.inside and torch.path not in self.different
        )

    def _find_differences(self, certificate: Certificate) -> tuple[list[Difference], list[Difference]]:
        """Return the differences in the first failed layer that may explain it, and those in the layers before it."""
        numbers = self._number_layers()
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

    def _blame_cast(self, certificate: Certificate) -> str | None:
        """Return that the first failed layer, or one right before it, differs alone as little as float32 rounds."""
        number = _layer_number(certificate.tensor or "", self._number_layers())
        if number == len(self.matching.layers):
            return None
        layer, _ = self.matching.layers[number]
        errors = {path: self.different.get(path) or 0.0 for path in (layer.path, *layer.after)}
        path = next((path for path, error in errors.items() if is_float32_rounding(error)), None)
        return None if path is None else f"{path} {_CAST}"

    def _blame_layer(self, certificate: Certificate) -> str | None:
        """Return that the first failed layer differs alone, although its settings are equal. None for other tensors."""
        _, is_activation, path = (certificate.tensor or "").partition("/activation/")
        path = path.partition("#")[0]
        if not is_activation or path not in self.different:
            return None
        return f"{path} computes something else by itself, with equal settings: look into its own code on both sides"

    def _number_layers(self) -> dict[str, int]:
        """Return the number of every matched layer by torch's path."""
        return {layer.path: number for number, (layer, _) in enumerate(self.matching.layers)}

    def _name_functions(self, tensor: str) -> list[str]:
        """Name the functions that both sides have before a layer, if `tensor` is its input."""
        layers, number = self.matching.layers, _layer_number(tensor, self._number_layers())
        if not tensor.endswith(".input") or number == len(layers):
            return []
        shared = diagnosis.list_shared_functions(*layers[number])
        words = f"both sides have {', '.join(shared)} before {layers[number][0].path}: compare the arguments"
        return [words] if shared else []

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


def _name_places(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - _LAYERS_SHOWN} more" if len(layers) > _LAYERS_SHOWN else ""
    return ", ".join(layers[:_LAYERS_SHOWN]) + more


def _are_same_rows(one: Sequence[int], other: Sequence[int]) -> bool:
    """Tell whether two shapes with another number of axes have the same rows of features."""
    return len(one) != len(other) and 0 not in (len(one), len(other)) and find_rows(one) == find_rows(other)


def _layer_number(tensor: str, numbers: Mapping[str, int]) -> int:
    """Return the number of the layer that has a certificate's tensor, or one past the last if no layer has it."""
    stage, _, rest = tensor.partition("/")
    name = rest if stage == "delta" else rest.partition("/")[2]
    fitting = [path for path in numbers if name == path or name.startswith((f"{path}.", f"{path}#"))]
    return numbers[max(fitting, key=len)] if fitting else len(numbers)


def _write_settings(difference: Difference) -> Iterator[str]:
    """Yield lines with the settings of both layers."""
    yield f"torch's {difference.torch} against flax's {difference.jax}:"
    for row in difference.rows:
        mark = "   <- differs" if row.differs else ""
        yield f"  {row.setting}: torch {row.torch}, flax {row.jax}{mark}"
