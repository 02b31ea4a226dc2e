"""Keep certificates from run to run, so that the same proof is made once.

A certificate is kept if it passed. It is found again by everything that decides it: sources, installed packages,
variables, machine, data and the specs of both sides. What both sides report after their first steps must be equal too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from compare.agreement import effective_settings
from compare.agreement.certificate import NOT_KEPT, Certificate
from compare.base import strict_json
from compare.base.interface import INFER, TRAIN, Refused
from compare.execution import store_keys
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, KeptCertificate, RunState
from compare.store import private_folder
from compare.store.entries import Entry, Store

KIND = "certificates"
"""The kind of these entries in the store."""

_FILE = "certificate.json"
_NEEDED = {TRAIN: {"semantic", "scaling", "update"}, INFER: {"semantic", "scaling"}}
_JUDGED_ANEW = {"settings", "resources"}


@dataclass
class KeptCertificates:
    """The kept certificates of one run.

    Attributes:
        store: where they are; None if this run keeps none.
        facts: everything that decides a certificate, by contender.
        reason: why this run keeps none, or None.
    """

    store: Store | None
    facts: Mapping[str, Mapping[str, Any]]
    reason: str | None = None

    @classmethod
    def find(cls, launcher: Launcher, state: RunState, steps: int) -> "KeptCertificates":
        """Find the certificates of this run's pairs and put them into `state.kept`.

        `steps` are the steps of the gate `update`. With `--certify-again` nothing is found.
        """
        plan = launcher.plan
        if not plan.agreement:
            return cls(None, {})
        if reason := store_keys.explain_unknown_facts(plan, state.pairing):
            return cls(None, {}, reason)
        try:
            kept = cls(
                Store(private_folder.find_root(plan.store)),
                {run.contender.name: list_facts(launcher, state, run, steps) for run in state.others},
            )
        except (Refused, OSError, RuntimeError) as error:
            return cls(None, {}, str(error))
        if not plan.certify_again:
            for name in kept.facts:
                if (found := kept._read(name)) is not None:
                    state.kept[name] = found
        return kept

    def confirm(self, state: RunState) -> None:
        """Use the found certificates, after the first steps of every contender.

        Drop a certificate if a side now reports other settings, versions or initial weights than when it was made.
        """
        for run in state.others:
            found = state.kept.get(run.contender.name)
            if found is None or state.baseline.status != "ok" or run.status != "ok":
                continue
            if found.reports == _list_reports(state.baseline, run):
                state.certificates[run.contender.name] = found.certificate
            else:
                del state.kept[run.contender.name]

    def add(self, state: RunState) -> None:
        """Keep the new certificates that passed. Note in every other new certificate why it is not kept."""
        for run in state.uncertified:
            name, reason = run.contender.name, self.reason
            current = state.certificates.get(name)
            if current is None or not current.passed:
                continue
            if self.store is not None and {gate.name for gate in current.gates} >= _NEEDED[state.plan.task]:
                try:
                    self._write(self.store, name, _without_settings(current, state.baseline, run), state, run)
                except (OSError, Refused) as error:
                    reason = str(error)
            if reason is not None:
                note = f"{NOT_KEPT}: {reason}"
                state.certificates[name] = replace(current, notes=(*current.notes, note))

    def _read(self, name: str) -> KeptCertificate | None:
        assert self.store is not None
        entry = self.store.find(KIND, self.facts[name])
        return None if entry is None else _read_entry(entry)

    def _write(self, store: Store, name: str, certificate: Certificate, state: RunState, run: ContenderRun) -> None:
        value = {"certificate": strict_json.encode(certificate), "reports": _list_reports(state.baseline, run)}
        plan, baseline = state.plan, state.baseline.contender.name
        what = f"{plan.workload.name}, {plan.precision}, {plan.device}: {name} against {baseline}"
        store.replace_json(KIND, self.facts[name], _FILE, value, what)


def list_facts(launcher: Launcher, state: RunState, run: ContenderRun, steps: int) -> dict[str, Any]:
    """Return everything that decides the certificate of a contender with the baseline, as JSON types.

    `steps` are the steps of the gate `update`.
    """
    plan, pairing, sides = launcher.plan, state.pairing, (state.baseline, run)
    return {
        **store_keys.list_shared_facts(plan, pairing, *sides),
        "data": plan.dataset.sha256,
        "weights": store_keys.hash_weights(plan),
        "pair": None if pairing is None else pairing.to_json(),
        "devices": plan.devices,
        "steps": steps,
        "batch_sizes": plan.batch_sizes,
        "sides": [
            {
                "backend": side.contender.backend,
                "tuning": side.contender.tuning,
                "spec": strict_json.encode(launcher.spec(side, data="", weights=None)),
                "variables": launcher.variables(side),
            }
            for side in sides
        ],
    }


def _list_reports(*sides: ContenderRun) -> list[Any]:
    """Return what both sides have reported after their first steps, as JSON types."""
    reports = [[side.settings, side.versions, side.model] for side in sides]
    return json.loads(json.dumps(strict_json.encode(reports)))


def _without_settings(certificate: Certificate, baseline: ContenderRun, run: ContenderRun) -> Certificate:
    """Return a certificate without the gates of both sides' settings, and their notes. Every run adds them anew."""
    remarks = set(effective_settings.list_remarks(baseline.settings, run.settings))
    return replace(
        certificate,
        gates=tuple(gate for gate in certificate.gates if gate.name not in _JUDGED_ANEW),
        notes=tuple(note for note in certificate.notes if note not in remarks),
    )


def _read_entry(entry: Entry) -> KeptCertificate | None:
    """Return the certificate of an entry, or None if its file is broken."""
    try:
        value = json.loads((entry.folder / _FILE).read_text(encoding="utf-8"))
        certificate = strict_json.decode(Certificate, value["certificate"])
        return KeptCertificate(certificate, value["reports"], entry.key, entry.created)
    except (OSError, ValueError, KeyError, TypeError):
        return None
