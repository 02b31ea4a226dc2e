"""No secret of the user's environment reaches a file or a terminal."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from compare.machine import environment
from tests.fakebackend import plans

SECRETS = {
    "NVIDIA_API_KEY": "drowned-lobster-1",
    "JAX_COORDINATOR_PASSWORD": "drowned-lobster-2",
    "TORCHX_TOKEN": "drowned-lobster-3",
    "TORCHINDUCTOR_REMOTE_CREDENTIALS": "drowned-lobster-4",
    "XLA_CLIENT_SECRET": "drowned-lobster-5",
    "NVIDIA_UNHEARD_OF": "drowned-lobster-6",
    "JAX_COMPILATION_CACHE_DIR": "https://user:drowned-lobster-7@example.org/cache",
    "cuda_secret_key": "drowned-lobster-8",
}


@pytest.mark.slow
def test_secrets_are_in_no_file_and_on_no_terminal(tmp_path: Path) -> None:
    variables = os.environ | plans.environment(tmp_path, {}) | SECRETS | {"SAMESTEP_FORKS": "1"}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "tests.fakebackend.program", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout + done.stderr

    shown = run("compare", "fake", "other", "--device", "cpu", "--epochs", "1", "--rounds", "2", "--out", "out")
    shown += run("env")
    shown += run("bundle", "out", "--out", "bundle.zip")
    files = ("--html", "report.html", "--latex", "report.tex", "--markdown", "report.md", "--csv", "report.csv")
    shown += run("report", "out", *files)
    with zipfile.ZipFile(tmp_path / "bundle.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    written = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, data in {"the terminal": shown.encode(), **written, **members}.items():
        assert b"drowned-lobster" not in data, name
    assert environment.NOT_RECORDED in (tmp_path / "out" / "result.json").read_text()
    assert '"NVIDIA_API_KEY": "(not recorded)"' in shown


def test_variables_that_decide_a_run_keep_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = {"NVIDIA_TF32_OVERRIDE": "0", "OMP_NUM_THREADS": "3", "TORCH_COMPILE_DISABLE": "1", "JAX_ENABLE_X64": "1"}
    for name, value in decide.items():
        monkeypatch.setenv(name, value)
    assert decide.items() <= environment.describe()["variables"].items()
