"""What was found out of a user's pair before it was certified, and what it says of a certificate that failed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compare.pairing.matching import Matching
from compare.pairing.trace import Trace


@dataclass(frozen=True)
class Pairing:
    """What is known of a pair before it is certified.

    Attributes:
        traces: by backend.
        matching: which layer of one side is which of the other.
        different: torch's paths of matched layers that, each by itself and on the same random input and weights, do not
            compute the same, with how far they are off (None: another shape).
        weights_from: the backend whose factory's initial weights training starts from.
        allowed: names of the accepted differences.
    """

    traces: Mapping[str, Trace]
    matching: Matching
    different: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    weights_from: str = "torch"
    allowed: tuple[str, ...] = ()

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
