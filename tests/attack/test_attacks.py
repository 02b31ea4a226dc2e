"""The short form of `make attack`: few random kills of fake runs, and few hostile files."""

import os
import subprocess
import sys

import pytest

from tests.fakebackend.plans import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [("hostile_files", "0", "30"), ("kills", "0", "6", "0")],
    ids=lambda attack: attack[0],
)
def test_no_attack_breaks_a_promise(attack: tuple[str, ...]) -> None:
    module, *arguments = attack
    command = [sys.executable, "-m", f"tests.attack.{module}", *arguments]
    variables = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
