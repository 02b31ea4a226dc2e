"""The files behind a user's model: modules and opened files count, and code with other inputs is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compare.base import strict_json
from compare.base.commands import UserFiles
from tests.fakebackend.plans import ROOT

_PROGRAM = """
import json, sys
from compare.base import strict_json
from compare.worker import user_files
user_files.watch_files()
sys.path.insert(0, sys.argv[1])
import model
model.make()
print(json.dumps(strict_json.encode(user_files.find())))
"""


def list_files(folder: Path, source: str, **variables: str) -> UserFiles:
    (folder / "model.py").write_text(source)
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=True)
    return strict_json.decode(UserFiles, json.loads(done.stdout))


def test_modules_and_opened_files_count_and_libraries_do_not(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("WIDTH = 3\n")
    (tmp_path / "config.json").write_text("{}")
    source = (
        f"import json\nimport numpy\nimport layers\n\ndef make():\n    open({str(tmp_path / 'config.json')!r}).read()\n"
    )
    kept = {"PYTHONPYCACHEPREFIX": str(tmp_path / "kept"), "PYTHONDONTWRITEBYTECODE": ""}
    list_files(tmp_path, source, **kept)
    files = list_files(tmp_path, source, **kept)  # this one reads the other's bytecode
    assert files.unknown is None
    assert {Path(name).name for name in files.sha256} == {"model.py", "layers.py", "config.json"}
    (tmp_path / "config.json").write_text("[]")
    changed = list_files(tmp_path, source)
    assert {Path(name).name for name, value in changed.sha256.items() if files.sha256[name] != value} == {"config.json"}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import os; os.environ.get('WIDTH')", "environ"),
        ("from os import getenv", "getenv"),
        ("import subprocess", "subprocess"),
        ("import urllib.request", "urllib"),
        ("import time", "time"),
        ("import os; os.listdir('.')", "listdir"),
        ("eval('1')", "eval"),
    ],
)
def test_code_that_reads_anything_else_is_named(tmp_path: Path, line: str, name: str) -> None:
    files = list_files(tmp_path, f"def make():\n    {line}\n")
    assert files.unknown is not None
    assert f"model.py uses {name}, " in files.unknown


def test_a_comment_or_a_method_of_that_name_is_no_input(tmp_path: Path) -> None:
    source = (
        '"""From https://example.org, not os.environ."""\n\n\nclass Model:\n    def eval(self):\n        return 1\n\n\n'
    )
    assert list_files(tmp_path, source + "def make():\n    return Model().eval()\n").unknown is None
