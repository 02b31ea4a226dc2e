"""Files beside the user's model that have the names of other modules do not run."""

import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from compare.base import installed, process_family
from compare.base.interface import Refused
from compare.worker import factories
from tests.fakebackend.plans import ROOT

NAMES = "ctypes", "queue", "compare", "numpy", "psutil", "secrets"
# As torch starts processes: by -c, and with its own sys.path as PYTHONPATH.
_GRANDCHILD = """
import os, subprocess, sys
environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
subprocess.run([sys.executable, "-c", "import ctypes, queue, numpy"], env=environment, check=True)
"""


def plant(folder: Path) -> None:
    """Put a file for each name into a folder, which says that it ran."""
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write({name!r})\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files that must not run."""
    plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_folders(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setattr(factories, "_folders", factories._UserFolders())
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
    for name in ("samestep_pair_model", "samestep_pair_other", "helper_of_model", "their_library"):
        sys.modules.pop(name, None)


def make(reference: str) -> factories.FactoryResult:
    return factories.make(reference, {}, offered={}, other="no_other_framework")


def test_processes_that_a_child_starts_run_nothing_of_the_current_folder(folder: Path) -> None:
    log = folder / "child.log"
    process = process_family.ProcessFamily([sys.executable, "-c", _GRANDCHILD], {}, log)
    process.wait()
    assert process.death() == ("crash", "ended with exit code 0; last output: nothing")
    assert not (folder / "ran").exists()


@pytest.mark.usefixtures("no_folders")
def test_the_users_code_alone_imports_from_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "helper_of_model.py").write_text("def build(): return 'a model'\n")
    (folder / "model.py").write_text(
        "import ctypes, queue\n"
        "def make():\n"
        "    from helper_of_model import build\n"  # as late as the call
        "    assert queue.Queue and ctypes.CDLL\n"
        "    return build()\n"
    )
    before = list(sys.path)
    assert make("model.py:make").model == "a model"
    assert sys.path == before
    theirs = folder / "venv" / "site-packages"  # in the user's folder, and not the user's code
    theirs.mkdir(parents=True)
    (theirs / "their_library.py").write_text(
        "try:\n    import helper_two\nexcept ImportError:\n    helper_two = None\n"
    )
    (folder / "helper_two.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(str(theirs))
    (folder / "other.py").write_text("import their_library\ndef make(): return their_library.helper_two\n")
    assert make("other.py:make").model is None
    assert not (folder / "ran").exists()


@pytest.mark.usefixtures("no_folders")
def test_a_module_that_the_user_names_is_found_in_the_current_folder(folder: Path) -> None:
    package = folder / "package_of_user"
    package.mkdir()
    (package / "__init__.py").write_text("from package_of_user.part import make\n")
    (package / "part.py").write_text("import helper_of_package\ndef make(): return helper_of_package.MODEL\n")
    (folder / "helper_of_package.py").write_text("MODEL = 'a model'\n")
    assert make("package_of_user:make").model == "a model"
    assert str(folder) not in sys.path


def test_entry_points_are_loaded_without_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = folder / "theirs"
    (theirs / "theirs-1.0.dist-info").mkdir(parents=True)
    (theirs / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (theirs / "theirs-1.0.dist-info" / "entry_points.txt").write_text(f"[{installed.GROUP}]\nmine = their_code:text")
    code = f"import subprocess, sys\n{_GRANDCHILD}\ntext = 'no workload'\n"
    (theirs / "their_code.py").write_text(code)
    monkeypatch.syspath_prepend(str(theirs))
    monkeypatch.setenv("PYTHONPATH", f"{theirs}:{ROOT}")
    with pytest.raises(Refused, match="is a str"):
        installed.get("mine")
    assert not (folder / "ran").exists()


def test_a_checkout_that_is_the_current_folder_serves_samestep_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compare", "jaxbackend", "torchbackend"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = tmp_path / "compare" / "__init__.py"
    package.write_text(package.read_text() + "\nprint('of the checkout')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process_family, "_PACKAGES", tmp_path)
    command = process_family.make_module_command("compare", "env")
    plant(tmp_path)
    safe = process_family.make_child_environment({})
    run = subprocess.run(command, env=safe, capture_output=True, text=True)
    assert (run.returncode, "of the checkout" in run.stdout) == (0, True), run.stderr
    assert not (tmp_path / "ran").exists()
