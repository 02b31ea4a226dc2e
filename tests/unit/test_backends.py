"""A backend that an installed package adds: compared as the others are, loaded by children alone, without knobs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compare.base.interface import Refused
from compare.settings import backends, plan
from compare.settings.options import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of installed packages. One brings `numpy`, and another would replace torch."""
    folder = tmp_path / "site"
    points = {"numpybackend": "numpy = tests.numpybackend", "impostor": "torch = tests.numpybackend"}
    for name, point in points.items():
        (info := folder / f"{name}-1.dist-info").mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{backends.GROUP}]\n{point}\n")
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.slow
def test_a_backend_of_an_installed_package_is_compared(installed: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(installed), str(ROOT)])
    command = "-m compare compare numpy numpy --rounds 2 --epochs 1 --device cpu --skip-energy"
    busy = "--void-limit 64 --out"  # beside other tests no round is repeated
    done = subprocess.run(
        [sys.executable, *command.split(), *busy.split(), str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    for contender in result["contenders"]:
        assert (contender["backend"], contender["tuning"], contender["status"]) == ("numpy", "stock", "ok")
        assert contender["versions"].keys() == {"numpy"}
    (pair,) = result["agreement"]["pairs"]
    assert pair["status"] == "pass"
    assert {gate["name"] for gate in pair["gates"]} >= {"semantic", "scaling", "precision", "update", "settings"}
    assert [each["contender"] for each in result["comparisons"]] == ["numpy#2"]


def test_samestep_itself_does_not_import_the_module_of_a_backend(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tests.numpybackend", raising=False)  # another test may have imported it
    made = plan.make(Settings(contenders=["torch", "numpy"], out=tmp_path / "out", device="cpu"))
    assert made.contenders[1].package == "tests.numpybackend"
    assert "tests.numpybackend" not in sys.modules


def test_no_package_replaces_a_backend_of_samestep(installed: Path) -> None:
    assert backends.find("torch").module == "torchbackend"


@pytest.mark.parametrize(
    ("contender", "reason"),
    [
        ("numpy:tuned", "numpy has no knobs; allowed: numpy or numpy:stock"),
        ("numpy:donation", "numpy has no switch 'donation' .none: numpy has no knobs"),
        ("numpy:stock+ddp", "numpy has no switch 'parallel'"),
        ("julia", "unknown contender 'julia'; allowed: .* torch or jax or numpy"),
    ],
)
def test_what_an_added_backend_does_not_have_is_refused(
    installed: Path, tmp_path: Path, contender: str, reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        plan.make(Settings(contenders=["torch", contender], out=tmp_path / "out", device="cpu"))
