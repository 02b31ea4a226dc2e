"""What became of a plan's contenders: filled phase by phase, judged in the end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compare.agreement.certificate import Certificate
from compare.agreement.measures import Updates
from compare.agreement.trajectory import Curves
from compare.base.interface import ContenderFailed
from compare.execution.round_validity import Round, Window
from compare.execution.telemetry import Telemetry
from compare.settings.contenders import Contender
from compare.user_models.match_report import Pairing


@dataclass
class ContenderRun:
    """What became of one contender; fields stay None or empty where a phase was not reached."""

    contender: Contender
    status: str = "ok"
    reason: str | None = None
    opened: dict[str, Any] = field(default_factory=dict[str, Any])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    start: dict[str, Any] | None = None
    held: int = 0
    training: dict[str, Any] | None = None
    update: Updates | None = None
    memory: dict[str, Any] | None = None
    energy: dict[str, Any] | None = None
    communication: dict[str, Any] | None = None
    steps_per_block: int | None = None
    samples: list[list[float]] = field(default_factory=list[list[float]])
    windows: list[list[Window]] = field(default_factory=list[list[Window]])
    unsteady: list[bool] = field(default_factory=list[bool])
    cached_compile_seconds: list[float] = field(default_factory=list[float])
    unproven: str | None = None


@dataclass
class RunState:
    """What became of a whole plan: contenders in order, the certificate of each with the baseline, and the rounds.

    `pairing` is what was found of a user's own pair. `design` is how the rounds were really timed, with the reason
    where it is not what was planned; `rounds` are those that were whole where the run was interrupted.
    """

    runs: list[ContenderRun]
    certificates: dict[str, Certificate] = field(default_factory=dict[str, Certificate])
    curves: dict[str, Curves] = field(default_factory=dict[str, Curves])
    pairing: Pairing | None = None
    accuracies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    twin_accuracies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    design: str = "alternating"
    design_reason: str | None = None
    rounds: list[Round] = field(default_factory=list[Round])
    telemetry: Telemetry = field(default_factory=Telemetry)
    voided: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def alive(self) -> list[ContenderRun]:
        """The contenders that have not failed."""
        return [run for run in self.runs if run.status == "ok"]


def attempt(run: ContenderRun, purpose: str, action: Callable[[], object]) -> None:
    """Do something for a contender; a failure marks its run."""
    try:
        action()
    except ContenderFailed as failure:
        run.status, run.reason = failure.status, f"{purpose}: {failure.reason}"
