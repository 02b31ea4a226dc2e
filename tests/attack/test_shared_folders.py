"""What another user puts into shared folders is neither loaded nor trusted."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from compare.machine import variables
from tests.fakebackend import plans


@pytest.mark.parametrize("command", ["compare", "agree"])
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_cache_that_others_can_change_is_refused_before_the_run(tmp_path: Path, command: str, mode: int) -> None:
    cache = tmp_path / "cache" / "samestep" / "programs"
    cache.mkdir(parents=True)
    cache.chmod(mode)
    environment = os.environ | plans.environment(tmp_path, {}) | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    arguments = ["-m", "tests.fakebackend.program", command, "fake", "other", "--device", "cpu", "--epochs", "1"]
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"samestep: {cache} can be written to by other users" in done.stderr
    assert plans.started(tmp_path) == []


def test_a_child_compiles_and_loads_in_private_folders(tmp_path: Path) -> None:
    scratch, kept = tmp_path / "scratch", tmp_path / "kept"
    scratch.mkdir()
    temporary = Path(variables.make_temporary_environment(scratch)["TMPDIR"])
    assert temporary.parent == scratch
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    for backend in ("jax", "torch"):
        cache = variables.make_cache_environment(backend, scratch / "cache", kept)
        folders = [Path(value) for value in cache.values() if value.startswith("/")]
        assert all(folder.is_relative_to(scratch) or folder.is_relative_to(kept) for folder in folders)
    assert variables.make_cache_environment("torch", scratch, kept)[variables.PROBES].startswith(str(kept))
