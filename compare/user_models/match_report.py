"""What was found out of a user's pair before it was certified, and what it says of a certificate that failed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.certificate import Certificate
from compare.base.trace import Trace
from compare.user_models import diagnosis
from compare.user_models.diagnosis import Advice, Difference
from compare.user_models.matching import Matching


@dataclass(frozen=True)
class Pairing:
    """What is known of a pair before it is certified.

    Attributes:
        traces: by backend.
        matching: which layer of one side is which of the other.
        different: torch's paths of matched layers that, each by itself and on the same random input and weights, do not
            compute the same, with how far they are off (None: another shape).
        resized: the match of the same models traced at the other image sizes that a certificate is made at.
        weights_from: the backend whose factory's initial weights training starts from.
        allowed: names of the accepted differences.
        given: how many variables are matched because a user's map says so.
    """

    traces: Mapping[str, Trace]
    matching: Matching
    different: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    resized: tuple[Matching, ...] = ()
    weights_from: str = "torch"
    allowed: tuple[str, ...] = ()
    given: int = 0

    @property
    def unlike(self) -> frozenset[str]:
        """Torch's paths of matched layers that are of two kinds: a dense layer and a 1x1 convolution."""
        return frozenset(torch.path for torch, jax in self.matching.layers if torch.role != jax.role)

    def explained(self, certificate: Certificate) -> Certificate:
        """Return a certificate with notes: the settings of the layer that failed first, and what would make it equal.

        Where that layer's settings are equal, those of the nearest layer before it whose settings are not.
        """
        notes, cause = [*self.matching.remarks], certificate.cause
        if not certificate.passed:
            at, before = self._differing(certificate)
            notes += [line for each in at or before[-1:] for line in _told(each)]
            if at:
                cause = at[0].advice[0].cause
            if self.given:
                notes.append(f"{self.given} variables are matched as the weights map says: it may be what is wrong")
        return replace(certificate, cause=cause, notes=(*notes, *certificate.notes))

    def _differing(self, certificate: Certificate) -> tuple[list[Difference], list[Difference]]:
        """Return what may explain the first tensor that differs: in its layer, and in those before it, in order."""
        numbers = {layer.path: number for number, (layer, _) in enumerate(self.matching.layers)}
        place = _number(certificate.tensor or "", numbers)
        found: dict[str, Difference] = {}
        for matching in (self.matching, *self.resized):  # what SAME pads by depends on the size
            for each in diagnosis.differences(matching):
                found.setdefault(each.torch, each)
        placed = sorted((numbers.get(path, len(numbers)), path) for path in found)
        here = [found[path] for number, path in placed if number == place]
        at = [replace(each, advice=told) for each in here if (told := self._explaining(each, certificate))]
        return at, [found[path] for number, path in placed if number < place and not found[path].is_harmless]

    def _explaining(self, difference: Difference, certificate: Certificate) -> tuple[Advice, ...]:
        """Return the advice of a layer that may be why it fails: what training does not feel, where it shows."""
        shows = {
            "running_variance": RUNNING_VARIANCE not in self.allowed and (certificate.tensor or "").endswith(".var"),
            "fast_variance": all(gate.passed for gate in certificate.gates if gate.name == "semantic"),
        }
        return tuple(each for each in difference.advice if not each.is_harmless or shows[each.setting])

    def to_json(self) -> dict[str, Any]:
        """Return what the result file says of the pair."""
        return {
            "map": self.matching.to_map(),
            "weights_from": self.weights_from,
            "allowed": list(self.allowed),
            "different_alone": dict(self.different),
            "sides": {
                backend: {
                    "framework": traced.framework,
                    "source_sha256": traced.source_sha256,
                    "dropout": list(traced.dropout),
                    "notes": list(traced.notes),
                }
                for backend, traced in self.traces.items()
            },
        }


def _number(tensor: str, numbers: Mapping[str, int]) -> int:
    """Return the number of the layer that a certificate's tensor is of, one past the last where it is of none."""
    stage, _, rest = tensor.partition("/")
    name = rest if stage == "delta" else rest.partition("/")[2]
    fitting = [path for path in numbers if name == path or name.startswith((f"{path}.", f"{path}#"))]
    return numbers[max(fitting, key=len)] if fitting else len(numbers)


def _told(difference: Difference) -> Iterator[str]:
    """Yield both layers' settings beside each other, and what would make them equal."""
    yield f"torch's {difference.torch} against flax's {difference.jax}:"
    for row in difference.rows:
        mark = "   <- differs" if row.differs else ""
        yield f"  {row.setting}: torch {row.torch}, flax {row.jax}{mark}"
    for reason in difference.advice:
        yield f"  {reason.sentence}"
