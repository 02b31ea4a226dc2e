"""Keep how long the phases of a run took, so that the next equal run can say how long it will take."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from compare.base import descriptions
from compare.base.interface import Refused
from compare.machine import cpu, environment, nvml
from compare.settings import options
from compare.settings.plan import Plan
from compare.store import private_folder
from compare.store.entries import Store

KIND = "run-times"
"""The kind of these entries in the store."""

_FILE = "phases.json"
_MOST_BYTES = 1 << 20


def find(plan: Plan) -> dict[str, float]:
    """Return the seconds of each phase of the last equal run on this machine, empty if there is none."""
    with suppress(OSError, Refused, RuntimeError, ValueError, AttributeError):
        entry = Store(private_folder.find_root(plan.store)).find(KIND, _list_facts(plan))
        if entry is not None and (path := entry.folder / _FILE).stat().st_size < _MOST_BYTES:
            return {str(phase): float(seconds) for phase, seconds in json.loads(path.read_text("utf-8")).items()}
    return {}


def keep(plan: Plan, seconds: Mapping[str, float]) -> None:
    """Keep the seconds of each phase of a complete run. Without a store, nothing is kept."""
    with suppress(OSError, Refused, RuntimeError):
        names = " ".join(contender.name for contender in plan.contenders)
        store = Store(private_folder.find_root(plan.store))
        store.replace_json(KIND, _list_facts(plan), _FILE, dict(seconds), f"{plan.workload.name}, {names}")


def _list_facts(plan: Plan) -> dict[str, Any]:
    gpus = nvml.describe()["gpus"] if plan.device == "cuda" else ()
    return {
        "spec": options.to_spec(plan),
        "contenders": [contender.name for contender in plan.contenders],
        "workload": descriptions.to_json(plan.workload),
        "timed": [plan.rounds, plan.looks is not None],
        "machine": [environment.read_cpu_model(), cpu.count_usable_cores(), *(gpu["name"] for gpu in gpus)],
    }
