"""Workloads that installed packages add by name, through the entry-point group `samestep.workloads`.

An entry point names a `compare.base.workloads.Workload`, or a function that returns one. It is loaded in a process of
its own (`python -m compare.base.installed NAME`): no code of a user runs in samestep's.
"""

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.metadata import entry_points

from compare.base import descriptions, process_family, workloads
from compare.base.interface import Refused
from compare.base.workloads import Workload

GROUP = "samestep.workloads"

_SECONDS = 120.0


def names() -> Mapping[str, str]:
    """Return the name of every installed workload, and the distribution that brings it."""
    return {each.name: each.dist.name if each.dist else "unknown" for each in entry_points(group=GROUP)}


def get(name: str) -> Workload:
    """Return the built-in or else the installed workload of that name.

    Raises:
        Refused: for an unknown name, listing those that exist, or an entry point that brings no workload.
    """
    if name in workloads.WORKLOADS:
        return workloads.get(name)
    found = names()
    if name not in found:
        return workloads.get(name, more=found)
    where = f"workload {name!r} of {found[name]}"
    try:
        done = subprocess.run(
            process_family.make_module_command("compare.base.installed", name),
            env=process_family.make_child_environment({}),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"{where}: took longer than {_SECONDS:g} s to load") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Refused(f"{where}: cannot be loaded: {lines[-1][:400]}")
    return descriptions.from_json(json.loads(done.stdout))


def _main(name: str) -> None:
    points = entry_points(group=GROUP, name=name)
    if len(points) != 1:  # what lies in the current folder alone is seen by `python -m compare` and not by its children
        raise SystemExit(f"{len(points)} installed packages have it; allowed: one, by pip install")
    (point,) = points
    with redirect_stdout(io.StringIO()):
        loaded = point.load()
        workload = loaded() if callable(loaded) else loaded
    if not isinstance(workload, Workload):
        raise SystemExit(f"{point.value} is a {type(workload).__name__}; allowed: a compare.base.workloads.Workload")
    json.dump(descriptions.to_json(workload) | {"name": name}, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1])
