"""Find the files that a user's code is made of and reads, so that a certificate is kept for that code only.

Watching is for the process that matches a pair. No other process watches, and nothing is timed in this one.
"""

import ast
import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from compare.base.commands import UserFiles
from compare.machine import variables

_CACHES = (
    *("JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"),
    variables.BYTECODE,
)
_SAMESTEP = Path(__file__).resolve().parents[2]
_LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_SYSTEM = [Path(name) for name in ("/proc", "/sys", "/dev")]
_INPUTS = {
    *("environ", "environb", "getenv", "getenvb", "argv", "subprocess", "system", "popen", "Popen", "socket", "urllib"),
    *(
        "requests",
        "httpx",
        "ctypes",
        "cffi",
        "mmap",
        "memmap",
        "listdir",
        "scandir",
        "glob",
        "rglob",
        "iterdir",
        "walk",
    ),
    *("exists", "is_file", "getpid", "gethostname", "uuid", "datetime", "time", "perf_counter", "importlib"),
}
"""Names that a source may use to compute from more than modules and files. A name too many costs only a new proof."""
_BUILT_INS = {"exec", "eval", "compile", "__import__"}
_opened: set[str] = set()


def watch_files() -> None:
    """Note every file that this process opens for reading from now on."""
    if not _opened:
        _opened.add("")
        sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes):
        with suppress(Exception):  # an error here would become the user's
            _opened.add(os.path.abspath(os.fsdecode(arguments[0])))  # noqa: PTH100 -- `resolve` would open links


def find() -> UserFiles:
    """Return the SHA-256 of every file of the user's, and why there may be others."""
    others = _list_other_folders()
    modules = {path for path in _list_modules() if _is_of_user(path, others)}
    read = {Path(name).resolve() for name in _opened if name}
    files = modules | {path for path in read if path.is_file() and _is_of_user(path, others)}
    unknown = None
    digests = dict[str, str]()
    for path in sorted(files):
        try:
            content = path.read_bytes()
        except OSError as error:
            return UserFiles(digests, f"{path} cannot be read: {error.strerror}")
        digests[str(path)] = hashlib.sha256(content).hexdigest()
        if unknown is not None:
            continue
        if path.suffix == ".py" and (name := find_input(content)):
            unknown = f"{path} uses {name}, so it may depend on more than the files that it opens"
        elif path in modules and path.suffix != ".py":
            unknown = f"{path} is compiled code, which may read files that samestep does not see"
    return UserFiles(digests, unknown)


def find_input(source: bytes) -> str | None:
    """Return the first name in a source that may read anything but files, or None."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return "what is no Python"
    for node in nodes:
        names = set[str]()
        if isinstance(node, ast.Name):
            names = {node.id} & (_INPUTS | _BUILT_INS)
        elif isinstance(node, ast.Attribute):
            names = {node.attr} & _INPUTS
        elif isinstance(node, ast.alias):
            names = set(node.name.split(".")) & _INPUTS
        elif isinstance(node, ast.ImportFrom):
            names = set((node.module or "").split(".")) & _INPUTS
        if names:
            return min(names)
    return None


def _list_modules() -> Iterator[Path]:
    resolve = functools.cache(Path.resolve)  # thousands of modules lie in hundreds of folders
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).is_absolute():  # `torch.classes` has a name without a folder
            path = resolve(Path(file).parent) / Path(file).name
            yield path.resolve() if path.is_symlink() else path


def _list_other_folders() -> tuple[str, ...]:
    """Return the folders of installed packages, of the system and of samestep, each with a separator at its end."""
    caches = [Path(os.environ[name]).resolve() for name in _CACHES if os.environ.get(name)]
    own = [_SAMESTEP / name for name in ("compare", "jaxbackend", "torchbackend")]
    scratch = Path(os.environ.get("TMPDIR", "/dev")).resolve().parent  # `Launcher.start` puts TMPDIR into it
    run = [scratch] if scratch.name.startswith("samestep-") else []
    return tuple(f"{folder}{os.sep}" for folder in (*_LIBRARIES, *_SYSTEM, *caches, *own, *run))


def _is_of_user(path: Path, others: tuple[str, ...]) -> bool:
    if str(path).startswith(others):
        return False
    return not {"__pycache__", "site-packages", "dist-packages"} & set(path.parts)
