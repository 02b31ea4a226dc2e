"""A compiler that is killed breaks no later run: its file is not in the cache, or it is deleted and made again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compare.machine import variables
from jaxbackend.only import whole_programs
from tests.fakebackend.plans import ROOT
from torchbackend.only import whole_files

_COMPILE = """
import os, pathlib, sys
import torch
import torch._inductor.compile_fx
from torch._inductor import config, cpu_vec_isa
from compare.base import knobs
from torchbackend import tuning
config.cpp_cache_precompile_headers = False  # compiling them takes longer than this program
cpu_vec_isa.supported_vec_isa_list = [cpu_vec_isa.VecAVX2()]  # a probe of each takes as long, too
for turn in range(2):  # two processes, which import no framework again
    if os.fork() == 0:
        tuning.prepare(dict.fromkeys(knobs.KNOBS, False) | {"compile": True}, "cpu", exchanges=False)
        print(float(torch.compile(lambda x: (x * 3 + 1).sin().sum())(torch.ones(64))), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
    libraries = [*pathlib.Path(sys.argv[1]).rglob("*.so")]
    print(len(libraries), all(path.stat().st_size for path in libraries), flush=True)
    for path in libraries:
        path.write_bytes(b"")
"""

_COMPILE_JAX = """
import jax, pathlib, sys
from jaxbackend.only import whole_programs
whole_programs.publish()
argument = jax.device_put(21.0)
for turn in range(2):
    print(float(jax.jit(lambda x: x * 2)(argument)))
    for path in pathlib.Path(sys.argv[1]).glob("*-cache"):
        path.write_bytes(path.read_bytes()[:10] if turn == 0 else path.read_bytes())
    jax.clear_caches()
"""


def test_a_compiler_that_is_killed_publishes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "program.so"

    def killed(command: str, folder: str) -> None:
        Path(command.split()[-1]).touch()
        raise subprocess.CalledProcessError(-9, command)

    with pytest.raises(subprocess.CalledProcessError):
        whole_files.compile_and_move(killed, f"g++ a.cpp -o {target}", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("same_disk", [True, False])
def test_a_whole_file_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_disk: bool) -> None:
    target = tmp_path / "an object.o"
    replace = Path.replace

    def refuse(path: Path, other: Path) -> Path:
        if path.parent != other.parent and not same_disk:
            raise OSError(18, "Invalid cross-device link")
        return replace(path, other)

    monkeypatch.setattr(Path, "replace", refuse)
    whole_files.compile_and_move(
        lambda command, folder: subprocess.run(["bash", "-c", command], cwd=folder, check=True) and None,
        f"sort /dev/null -o '{target}'",
        str(tmp_path),
    )
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_files_that_cannot_be_loaded_are_deleted_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "ab" / "whole.so"
    whole.parent.mkdir()
    shutil.copy(Path(sys.executable).resolve(), whole)
    cut = whole.with_name("cut.so")
    cut.write_bytes(whole.read_bytes()[:-1])
    for name in ("empty.so", "empty.o", "empty.gch", "main.cpp"):
        (tmp_path / name).touch()
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / "ab" / f".{pid}.1.tmp").touch()
    broken = whole_files.drop_broken(tmp_path)
    assert [path.name for path in tmp_path.rglob("*.tmp")] == [f".{os.getpid()}.1.tmp"]
    assert {path.name for path in broken} == {"cut.so", "empty.so", "empty.o", "empty.gch"}
    assert {path.name for path in tmp_path.rglob("[!.]*.*")} == {"whole.so", "main.cpp"}
    assert f"{cut} is not whole" in capfd.readouterr().err


def test_a_program_of_jax_is_written_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SimpleNamespace(path=tmp_path, eviction_enabled=False)
    for value in (b"whole", b"another process's"):
        whole_programs.put_whole(cache, None, "key", value)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]
    monkeypatch.delattr(os, "O_TMPFILE")
    whole_programs.put_whole(cache, None, "other", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {"key-cache", "other-cache"}


@pytest.mark.slow
def test_a_program_of_jax_that_cannot_be_loaded_is_made_again(tmp_path: Path) -> None:
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = os.environ | cache | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _COMPILE_JAX, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "42.0\n42.0\n"), done.stderr
    assert done.stderr.count("it is deleted and made again") == 1
    assert all(path.stat().st_size > 10 for path in tmp_path.glob("*-cache"))


@pytest.mark.slow
def test_a_run_after_an_interrupted_compiler_works_in_private_folders(tmp_path: Path) -> None:
    """Another user may have made the predictable folder first, and whatever is put there would be found."""
    kept, scratch, shared = (tmp_path / name for name in ("kept", "scratch", "shared"))
    scratch.mkdir()
    shared.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(shared)}
    environment |= variables.make_cache_environment("torch", kept, kept) | variables.make_temporary_environment(scratch)

    command = [sys.executable, "-P", "-c", _COMPILE, str(kept)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    value, libraries, *again = done.stdout.splitlines()
    assert libraries == "2 True"
    assert again == [value, libraries]
    assert done.stderr.count("it is deleted and made again") == 2
    assert [path for folder in (scratch, shared) for path in folder.rglob("*") if path.is_file()] == []
    assert list(shared.iterdir()) == []
