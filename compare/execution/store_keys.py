"""List the facts that decide what is kept from run to run: sources, packages, variables and the machine."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from compare.base import descriptions, strict_json
from compare.base.commands import UserFiles
from compare.base.workloads import PAIR
from compare.execution.run_state import ContenderRun
from compare.machine import cpu, environment, nvml
from compare.settings.plan import Plan
from compare.user_models.match_report import Pairing

_SOURCES = (".py", ".json")
_PREFIXES = (*environment.PREFIXES, "PYTHON", "LD_", "DYLD_", "TRITON_", "CC", "CXX", "SAMESTEP_")
"""The beginnings of the names of variables that may change what a child computes."""


def explain_unknown_facts(plan: Plan, pairing: Pairing | None) -> str | None:
    """Return why samestep cannot know everything that decides this plan's work, or None if it can."""
    if plan.workload.model.family == PAIR:
        code = dict[str, UserFiles]() if pairing is None else pairing.code
        if unknown := next((files.unknown for files in code.values() if files.unknown), None):
            return unknown
        if not code or plan.weights is None:
            return "the files of your own models are not known"
    if plan.cluster.count > 1:
        return "samestep does not know the software of the other machines"
    for contender in plan.contenders:
        if not find_sources(contender.package):
            return f"the sources of backend {contender.backend} are not in files"
    return None


def list_shared_facts(plan: Plan, pairing: Pairing | None, *sides: ContenderRun) -> dict[str, Any]:
    """Return the facts that decide what contenders compute and how it is compiled, as JSON types."""
    nvidia = nvml.describe() if plan.device == "cuda" else None
    packages = {"compare", *(side.contender.package for side in sides)}
    return {
        "sources": {package: hash_files(find_sources(package)) for package in sorted(packages)},
        "python": [sys.version, sys.executable],
        "distributions": dict(_list_distributions()),
        "machine": [platform.machine(), *platform.libc_ver(), environment.read_cpu_model(), cpu.count_usable_cores()],
        "gpus": [] if nvidia is None else [gpu["name"] for gpu in nvidia["gpus"]],
        "driver": [None, None] if nvidia is None else [nvidia["driver"], nvidia["cuda_driver"]],
        "variables": _hash_variables(os.environ),
        "workload": descriptions.to_json(plan.workload),
        "code": {} if pairing is None else strict_json.encode(pairing.code),
    }


def hash_weights(plan: Plan) -> str | None:
    """Return the SHA-256 of the file of initial weights, None if the seed alone decides them."""
    return None if plan.weights is None else hashlib.sha256(Path(plan.weights).read_bytes()).hexdigest()


def _hash_variables(variables: Mapping[str, str]) -> str:
    """Return the SHA-256 of the variables that may decide a certificate. Their values may be secrets."""
    deciding = sorted((name, value) for name, value in variables.items() if name.startswith(_PREFIXES))
    return hashlib.sha256(json.dumps(deciding).encode()).hexdigest()


def hash_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the names and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        status = path.stat()
        digest.update(f"{path}\0{_hash_file(path, status.st_mtime_ns, status.st_size)}\0".encode())
    return digest.hexdigest()


@cache
def _hash_file(path: Path, _modified: int, _size: int) -> str:
    """Return the SHA-256 of a file, read once for each of its versions."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def find_sources(package: str) -> list[Path]:
    """Return the source files of a backend or of samestep, without importing it. The list may be empty.

    A package may import others of its outermost package, so their files count too.
    """
    found = importlib.util.find_spec(package.partition(".")[0])
    if found is None:
        return []
    if found.submodule_search_locations is None:
        return [Path(found.origin)] if found.has_location and found.origin else []
    return [path for folder in found.submodule_search_locations for path in _list_files(folder)]


@cache
def _list_files(folder: str) -> list[Path]:
    """Return the source files in a folder and below it. A file that comes later counts only in the next process."""
    paths = (Path(place, name) for place, _, names in os.walk(folder) for name in names if name.endswith(_SOURCES))
    return [path for path in paths if path.is_file()]


@cache
def _list_distributions() -> tuple[tuple[str, tuple[str, str]], ...]:
    """Return the name of every installed distribution, with its version and the SHA-256 of its list of files.

    The list has a digest of each file, so it tells two builds of one version apart.
    """
    found = dict[str, tuple[str, str]]()
    for each in importlib.metadata.distributions():
        listed = each.read_text("RECORD") or ""
        found.setdefault(each.name, (each.version, hashlib.sha256(listed.encode()).hexdigest()))
    return tuple(sorted(found.items()))
