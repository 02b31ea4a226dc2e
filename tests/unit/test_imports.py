import json
import subprocess
import sys

import pytest

from compare.cli.app import COMMANDS, make_reference

IMPORT_ALL = """
import importlib, json, pkgutil, sys
import compare

def fail(name):
    raise

names = [module.name for module in pkgutil.walk_packages(compare.__path__, "compare.", onerror=fail)]
for name in names:
    if not name.endswith((".__main__", "kernels.products")):  # Triton compiles the second, and need not be there
        importlib.import_module(name)
json.dump([names, sorted(sys.modules)], sys.stdout)
"""

FRAMEWORKS = {"flax", "jax", "jaxlib", "optax", "torch", "jaxbackend", "torchbackend"}


@pytest.fixture(scope="module")
def imported() -> tuple[list[str], set[str]]:
    """The modules of compare, and all modules that are loaded once these are."""
    process = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    names, loaded = json.loads(process.stdout)
    return names, set(loaded)


def test_every_module_of_compare_is_found(imported: tuple[list[str], set[str]]) -> None:
    names, _ = imported
    assert {"compare.base.interface", "compare.base.workloads", "compare.machine.environment"} <= set(names)


def test_compare_imports_no_framework_and_no_backend(imported: tuple[list[str], set[str]]) -> None:
    _, loaded = imported
    assert not FRAMEWORKS & loaded


def test_the_help_of_the_program_imports_no_command() -> None:
    script = (
        "import json, sys; from compare.cli import app; sys.argv = ['samestep', '--help']\n"
        "try: app.main()\n"
        "finally: print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert not {"numpy", "rich", "compare.execution.execute"} & set(loaded)


def test_every_line_of_the_help_begins_like_the_page_of_its_command() -> None:
    for page in make_reference():
        assert " ".join(page.text.split()).startswith(COMMANDS[page.name].summary.removesuffix("."))


def test_a_wrong_command_is_answered_with_the_near_one() -> None:
    done = subprocess.run([sys.executable, "-m", "compare", "bundel"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Did you mean 'bundle'" in done.stderr
