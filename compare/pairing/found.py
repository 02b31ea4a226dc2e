"""What was found out of a user's pair before it was certified, and what it says of a certificate that failed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compare.agreement.certificate import Certificate
from compare.pairing import advice
from compare.pairing.advice import Difference
from compare.pairing.matching import Matching
from compare.pairing.trace import Trace

_CAUSE = "; likely cause: "
_TENSOR = re.compile(r"(?:step\d+/\w+|delta)/(\S+)|evaluation/logits|step\d+/(?:logits|loss)")


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
    """

    traces: Mapping[str, Trace]
    matching: Matching
    different: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    resized: tuple[Matching, ...] = ()
    weights_from: str = "torch"
    allowed: tuple[str, ...] = ()

    def explained(self, certificate: Certificate) -> Certificate:
        """Return a certificate with notes: the settings of the layer that failed first, and what would make it equal.

        Where that layer's settings are equal, those of the nearest layer before it whose settings are not.
        """
        notes, mismatch = [*self.matching.remarks], certificate.first_mismatch
        if not certificate.passed:
            reasons = self._reasons(mismatch or "")
            notes += [line for each in reasons for line in _told(each)]
            at = [each for each in reasons if self._position(each) == self._place(mismatch or "")]
            if at and mismatch:
                mismatch = f"{mismatch.partition(_CAUSE)[0]}{_CAUSE}{at[0].advice[0].cause}"
        return replace(certificate, first_mismatch=mismatch, notes=(*notes, *certificate.notes))

    def _reasons(self, mismatch: str) -> list[Difference]:
        place, differing = self._place(mismatch), list[Difference]()
        for matching in (self.matching, *self.resized):  # what SAME pads by depends on the size
            found = [each for each in advice.differences(matching) if self._position(each) <= place]
            differing += [each for each in found if all(other.torch != each.torch for other in differing)]
        at = [each for each in differing if self._position(each) == place]
        return at or [each for each in differing if not each.is_harmless][-1:]

    def _place(self, mismatch: str) -> int:
        """Return the number of the layer that a mismatch names, one past the last for the logits."""
        tensor = _TENSOR.search(mismatch)
        name = (tensor and tensor[1]) or ""
        fitting = [
            (len(layer.path), number)
            for number, (layer, _) in enumerate(self.matching.layers)
            if name == layer.path or name.startswith((f"{layer.path}.", f"{layer.path}#"))
        ]
        return max(fitting)[1] if fitting else len(self.matching.layers)

    def _position(self, difference: Difference) -> int:
        paths = [layer.path for layer, _ in self.matching.layers]
        return paths.index(difference.torch) if difference.torch in paths else len(paths)

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


def _told(difference: Difference) -> Iterator[str]:
    """Yield both layers' settings beside each other, and what would make them equal."""
    yield f"torch's {difference.torch} against flax's {difference.jax}:"
    for row in difference.rows:
        mark = "   <- differs" if row.differs else ""
        yield f"  {row.setting}: torch {row.torch}, flax {row.jax}{mark}"
    for reason in difference.advice:
        yield f"  {reason.sentence}"
