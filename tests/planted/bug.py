"""The description of a planted bug."""

from dataclasses import dataclass

from tests.planted.plants import Plant


@dataclass(frozen=True)
class Bug:
    """One planted bug.

    Attributes:
        name: in words. side: the backend that has it. probe: the workload where it matters.
        plant: changes a side.
        first: how the certificate's first mismatch must begin.
        cause: a part of the likely cause that it must suggest.
        precision: whose gate must catch it; float64 stands for the semantic gate.
    """

    name: str
    side: str
    probe: str
    plant: Plant
    first: str
    cause: str = ""
    precision: str = "float64"
