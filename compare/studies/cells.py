"""Cells: the comparisons of a study, each with a key of everything that decides its result.

The key leaves out where a cell runs. So a study that moves to another machine keeps its finished cells. `find_place`
tells the machines apart.
"""

import ast
import hashlib
import importlib.machinery
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from compare.base import descriptions, early_stopping, typed_json
from compare.base.interface import Refused
from compare.base.typed_json import Json
from compare.base.workloads import PAIR
from compare.cluster.cluster import Cluster
from compare.data import datasets
from compare.execution import store_keys
from compare.machine import environment
from compare.results.model import Environment
from compare.settings import options, plan
from compare.settings.options import Settings
from compare.settings.pair_spec import BACKENDS
from compare.settings.plan import Plan
from compare.store.entries import compute_key

_MEASURING = ("agreement", "base", "cluster", "data", "execution", "machine", "settings", "user_models", "worker")
"""The folders of samestep that decide how a cell is measured. Reports do not."""

_LEFT_OUT = {"data_folder", "deadline_seconds"}
"""Keys of a result's spec that do not decide a figure. The content of a data folder counts, not its name."""

_PLACE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_TOOLS = {"psutil", "nvidia-ml-py", "pytest", "pytest-benchmark"}


@dataclass(frozen=True)
class Place:
    """A kind of machine. Figures of two places must not be compared.

    Attributes:
        device: the name of the GPU, or of the CPU if the cell trains there.
        facts: everything that tells this kind of machine from others, by name.
    """

    device: str
    facts: Mapping[str, Json]

    @property
    def text(self) -> str:
        """The place in words."""
        if self.facts.get("gpu"):
            return f"{self.device}, driver {self.facts.get('driver') or 'unknown'}"
        return f"{self.device}, {self.facts.get('cores') or 'unknown'} cores"


@dataclass(frozen=True)
class Cell:
    """One comparison of a study.

    Attributes:
        name: what differs from the other cells, in words. It is unique in the study.
        settings: the settings of the comparison. `out` is set when the cell runs.
        cluster: the machine that the cell is planned for, None for this one.
    """

    name: str
    settings: Settings
    cluster: Cluster | None = field(default=None, compare=False)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Everything that decides the result, apart from the machine, as JSON types.

        Raises:
            Refused: the comparison cannot be done here.
        """
        return json.loads(json.dumps(_list_facts(self.check())))  # tuples become lists, as in the store

    @cached_property
    def key(self) -> str:
        """The SHA-256 of `facts`, 64 hexadecimal digits.

        Raises:
            Refused: as `facts`.
        """
        return compute_key(self.facts)

    @property
    def device(self) -> str:
        """The device, `cpu` or `cuda`.

        Raises:
            Refused: there is no such device here.
        """
        return plan.resolve(self.settings, self.cluster)[1]

    def check(self) -> Plan:
        """Return the plan without its data, after every check that a run makes before it starts.

        Data that only the seed and the settings decide are not made.

        Raises:
            Refused: the comparison cannot be done here.
        """
        settings = replace(self.settings, out=self.settings.out or Path())
        workload = plan.find_workload(settings.workload)
        folder = None if settings.data is None else str(settings.data)
        if not datasets.is_made_for_batch(workload, folder):
            return plan.make(settings, cluster=self.cluster)
        return plan.make(settings, cluster=self.cluster, dataset=datasets.make_empty("made for the batch"))


def find_place(described: Environment, device: str) -> Place:
    """Return the place that a result's environment describes."""
    name = described.device_name(device) or "unknown device"
    if device == "cuda":
        driver, model = described.find_fact("nvidia", "driver"), described.find_fact("cpu", "model")
        return Place(name, {"gpu": name, "driver": driver, "cpu": model})
    return Place(name, {"cpu": name, "cores": described.find_fact("cpu", "usable_cores")})


@cache
def find_place_here(device: str) -> Place:
    """Return the place of this machine."""
    return find_place(Environment(extra=typed_json.write(environment.describe())), device)


def _list_facts(checked: Plan) -> dict[str, Any]:
    spec = {key: value for key, value in options.to_spec(checked).items() if key not in _LEFT_OUT}
    packages = sorted({contender.package for contender in checked.contenders})
    is_made = not len(checked.dataset.train.labels)
    request = checked.request
    return {
        "sources": {"compare": _hash_samestep(), **{name: _hash_package(name) for name in packages}},
        "python": sys.version,
        "packages": {name: environment.find_version(name) for name in environment.DISTRIBUTIONS if name not in _TOOLS},
        "variables": _hash_variables(),
        "spec": spec,
        "measures_memory": checked.measures_memory,
        "contenders": [[contender.name, contender.commit] for contender in checked.contenders],
        "looks": early_stopping.to_json(checked.looks),
        "workload": descriptions.to_json(checked.workload),
        "data": None if is_made else checked.dataset.sha256,
        "request": [dict(request.weights_map) if request.weights_map else None, request.weights_from],
        "code": _hash_user_code(checked),
    }


@cache
def _hash_samestep() -> str:
    folder = Path(__file__).resolve().parents[1]
    return store_keys.hash_files(
        path for name in _MEASURING for path in (folder / name).rglob("*") if path.suffix in (".py", ".json")
    )


@cache
def _hash_package(package: str) -> str:
    return store_keys.hash_files(store_keys.find_sources(package))


def _hash_variables() -> str:
    """Return the SHA-256 of the variables that decide a result. Their values may be secrets."""
    names = environment.VARIABLES.difference(_PLACE_VARIABLES)
    deciding = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name in names or (name.startswith(environment.OWN_PREFIXES) and name not in _PLACE_VARIABLES)
    )
    return hashlib.sha256(json.dumps(deciding).encode()).hexdigest()


def _hash_user_code(checked: Plan) -> dict[str, str]:
    """Return the SHA-256 of each file that a user's pair is made of, by path, empty for a workload of samestep.

    Imports are followed without running anything. A file that the code opens itself is not seen.

    Raises:
        Refused: a factory's file is missing.
    """
    if checked.workload.model.family != PAIR:
        return {}
    digests = dict[str, str]()
    arguments = checked.workload.model.arguments
    losses: Mapping[str, str] = arguments.get("losses", {})
    references = [(backend, str(arguments[backend])) for backend in BACKENDS if backend in arguments]
    for backend, reference in [*references, *losses.items()]:
        for path in _follow_imports(_find_file(reference, backend)):
            digests[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def _find_file(reference: str, backend: str) -> Path:
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise Refused(f"--{backend} {reference}: there is no file {place}; allowed: a file with a factory")
        return path.resolve()
    if found := _find_module(place, [Path.cwd()]):
        return found
    raise Refused(f"--{backend} {reference}: there is no module {place}; allowed: a module of yours, or a file")


def _follow_imports(first: Path) -> Iterator[Path]:
    waiting, seen = [first], {first}
    while waiting:
        path = waiting.pop()
        yield path
        for imported in _list_imports(path):
            if imported not in seen:
                seen.add(imported)
                waiting.append(imported)


def _list_imports(path: Path) -> Iterator[Path]:
    """Yield the files of the user's own modules that a source names in its imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        names = list[str]()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
        for name in names:
            if name and (found := _find_module(name, [path.parent, Path.cwd()])):
                yield found


def _find_module(name: str, folders: list[Path]) -> Path | None:
    """Return the source of a module in a user's folders, None for an installed or unknown one. Import nothing."""
    search, found = [str(folder) for folder in folders], None
    for part in name.split("."):
        found = importlib.machinery.PathFinder.find_spec(part, search)
        if found is None:
            return None
        search = list(found.submodule_search_locations or ())
    origin = found.origin if found else None
    return Path(origin).resolve() if origin and origin.endswith(".py") else None
