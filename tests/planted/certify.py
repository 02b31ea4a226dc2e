"""Certificates of sides with and without a bug."""

from pathlib import Path

import pytest

from compare.agreement import certificate, floors
from compare.agreement.floors import Noise
from compare.base import descriptions
from compare.base.interface import Arrays, Backend, RunSpec, Session
from compare.base.precisions import PRECISIONS
from compare.worker import recording
from tests.parity import twins
from tests.planted.bug import Bug
from tests.planted.probes import STEPS, Side

ULP_RUNS, NOISE_RUNS = 5, 20


class Reused:
    """A backend that opens each session once, so that many seeds compile once."""

    def __init__(self, backend: Backend) -> None:
        self.name, self.versions, self.out_of_memory = backend.name, backend.versions, backend.out_of_memory
        self.delay, self.ballast, self.trace = backend.delay, backend.ballast, backend.trace
        self._backend, self._opened = backend, list[tuple[object, Session]]()

    def open(self, spec: RunSpec) -> Session:
        """Return a session with the spec's workload, precision, loss scale and micro-batches."""
        key = (descriptions.read_workload(spec), spec.precision, spec.loss_scale, spec.accumulate)
        if (opened := next((session for known, session in self._opened if known == key), None)) is None:
            opened = self._backend.open(spec)
            self._opened.append((key, opened))
        return opened


class Clean:
    """Records and noise floors without a bug, made once for each probe, backend, precision and seed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._backends = {name: Reused(twins.BACKENDS[name]) for name in twins.BOTH}
        self._made: dict[tuple[str, str, str, int], Arrays] = {}
        self._noise: dict[tuple[str, str, int], Noise] = {}

    def record(self, probe: str, backend: str, precision: str, seed: int = 3) -> Arrays:
        """Return one side's record."""
        key = (probe, backend, precision, seed)
        if key not in self._made:
            with pytest.MonkeyPatch.context() as patch:
                spec = Side.clean(probe, patch, seed).spec(backend, precision, self.folder)
                self._made[key] = twins.recorded(self._backends[backend], spec, STEPS)
        return self._made[key]

    def noise(self, probe: str, precision: str, seed: int = 3) -> Noise:
        """Return the noise floor of a precision."""
        key = (probe, precision, seed)
        if key not in self._noise:
            perturbations = [(floors.ULP64, 0, ULP_RUNS)]
            if precision != "float64":
                perturbations.append((PRECISIONS[precision].roundoff, ULP_RUNS, ULP_RUNS + NOISE_RUNS))
            with pytest.MonkeyPatch.context() as patch:
                spec = Side.clean(probe, patch, seed).spec("torch", "float64", self.folder)
                self._noise[key] = Noise(*recording.measure_noise(self._backends["torch"], spec, STEPS, perturbations))
        return self._noise[key]

    def certificate(self, probe: str, precision: str, seed: int = 3) -> certificate.Certificate:
        """Return the certificate of two sides without a bug."""
        precisions = dict.fromkeys(("float64", "float32", precision))
        torch_side, jax_side = (
            {each: self.record(probe, backend, each, seed) for each in precisions} for backend in ("torch", "jax")
        )
        if precision == "float64":
            # Noise of one ulp only forgives, and cancelling tensors are the same for all seeds. Measure it if needed.
            for cheap in (lambda: Noise({}), lambda: self.noise(probe, precision)):
                found = certificate.judge(torch_side, jax_side, precision, cheap())
                if found.passed:
                    return found
        return certificate.judge(torch_side, jax_side, precision, self.noise(probe, precision, seed))


def certify(bug: Bug, clean: Clean) -> certificate.Certificate:
    """Return the certificate of a side with the bug (the contender) against the other side without it."""
    precisions = dict.fromkeys(("float64", "float32", bug.precision))
    other = "torch" if bug.side == "jax" else "jax"
    with pytest.MonkeyPatch.context() as patch:
        side = Side.clean(bug.probe, patch)
        bug.plant(side)
        planted = {precision: side.record(bug.side, precision, clean.folder) for precision in precisions}
    baseline = {precision: clean.record(bug.probe, other, precision) for precision in precisions}
    return certificate.judge(baseline, planted, bug.precision, clean.noise(bug.probe, bug.precision))
