"""Load a user's model from `pkg.module:name` or `path/to/file.py:name`.

User code runs only here, in a child, and never in the parent.
"""

import builtins
import functools
import hashlib
import importlib
import importlib.util
import inspect
import io
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from compare.base.errors import take_first_line
from compare.base.interface import Refused
from compare.settings.pair_spec import CODE_ROOT, FORMS

_T = TypeVar("_T")
_SAMESTEP = ("compare", "jaxbackend", "torchbackend")
_NOT_OF_USERS = {*sys.stdlib_module_names, *_SAMESTEP}
_ROOT, _LIBRARY = Path(__file__).resolve().parents[2], Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True)
class FactoryResult:
    """The model of a factory, the SHA-256 of the factory's file, and notes about the call for a reader."""

    model: Any
    source_sha256: str
    notes: tuple[str, ...]


def make(
    reference: str,
    arguments: Mapping[str, Any],
    *,
    offered: Mapping[str, Any],
    other: str,
    importing: AbstractContextManager[Any] | None = None,
) -> FactoryResult:
    """Import the factory of `reference` within `importing`, and return what it returns.

    The factory gets `arguments` as keywords, and those of `offered` that its signature names. A note reports if it
    imports `other`, the package of the other framework.

    Raises:
        Refused: there is no such module, file or name. Or the import or the call raises an error or exits. Or an
            argument is missing or unknown.
    """
    seen = other in sys.modules
    printed = io.StringIO()
    with redirect_stdout(printed):
        with importing or nullcontext():
            factory = _import_factory(reference)
        chosen = _choose_arguments(factory, reference, arguments, offered)
        model = _guard(lambda: factory(**chosen), f"{reference}: the factory")
    notes: list[str] = []
    if printed.getvalue().strip():
        notes.append(f"{reference} printed to standard output: {printed.getvalue().strip().splitlines()[0][:80]!r}")
    if not seen and other in sys.modules:
        notes.append(f"{reference} imported {other}, the other framework, into this side's process")
    return FactoryResult(model, _source_sha256(factory), tuple(notes))


def load_function(reference: str) -> Callable[..., Any]:
    """Return a function of the user's, such as a loss, by its reference.

    Raises:
        Refused: there is no such module, file or name, or the import raises an error or exits.
    """
    with redirect_stdout(io.StringIO()):
        return _import_factory(reference)


def call_function(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function of the user's.

    Raises:
        Refused: it raises an error or exits.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return _guard(lambda: function(*arguments), f"{getattr(function, '__module__', '')}:{name}")


def add_source(source_sha256: str, reference: str | None) -> str:
    """Return the SHA-256 of a factory's file, joined with that of the function's file at `reference`, if there is one.

    Raises:
        Refused: as `load_function`.
    """
    if reference is None:
        return source_sha256
    own = _source_sha256(load_function(reference))
    return source_sha256 if own == source_sha256 else hashlib.sha256(f"{source_sha256}{own}".encode()).hexdigest()


def _import_factory(reference: str) -> Callable[..., Any]:
    place, colon, name = reference.rpartition(":")
    if not (colon and place and name.isidentifier()):
        raise Refused(f"{reference!r} names no factory; allowed: {FORMS}")
    module = _file(place, reference) if place.endswith(".py") else _module(place, reference)
    factory = getattr(module, name, None)
    if factory is None:
        public = {each: value for each, value in vars(module).items() if callable(value) and not each.startswith("_")}
        own = [each for each, value in public.items() if getattr(value, "__module__", "") == module.__name__]
        raise Refused(f"{reference}: {place} has no {name!r}; it has: {', '.join(own or public) or 'nothing callable'}")
    if not callable(factory):
        raise Refused(
            f"{reference}: {name} is of type {type(factory).__name__}; allowed: a function that returns a model"
        )
    if not isinstance(factory, type) and any(kind.__name__ == "Module" for kind in inspect.getmro(type(factory))):
        kind = type(factory).__name__
        raise Refused(
            f"{reference}: {name} is a model (a {kind}), not a function that makes one; allowed: a function, for "
            f"instance `def make(): return {kind}(...)`, with --{_find_side(factory)} {place}:make"
        )
    return factory


def _find_side(model: Any) -> str:
    """Return the option of a model's side."""
    return "torch" if type(model).__module__.startswith("torch") or hasattr(model, "forward") else "jax"


class _UserFolders:
    """Lets only the user's code import modules from the user's folders.

    The folders are not in `sys.path`: torch hands that on to processes which it starts, and a file such as `ctypes.py`
    beside the user's model would run there. Modules of Python keep their names.

    Attributes:
        before: folders that come before installed packages.
        after: folders that come after them.
    """

    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[str] = []

    def add(self, *, before: Path | None = None, after: Path | None = None) -> None:
        """Add folders, and serve them from now on."""
        for folders, folder in ((self.before, before), (self.after, after)):
            if folder is not None and str(folder) not in folders:
                folders.insert(0, str(folder))
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the place of a user's module. Return None for other modules and for imports by other code."""
        if path is not None or name in _NOT_OF_USERS or not self._is_of_user(_importing_file()):
            return None
        found = PathFinder.find_spec(name, self.before)
        if found is not None and found.loader is not None:
            return found
        # As in sys.path, a folder without __init__.py comes after every package of that name.
        others = (finder.find_spec(name, None) for finder in sys.meta_path if not isinstance(finder, _UserFolders))
        return next(filter(None, others), None) or PathFinder.find_spec(name, self.after) or found

    def _is_of_user(self, file: str) -> bool:
        if file == __file__:
            return True
        inside = any(Path(file).is_relative_to(folder) for folder in (*self.before, *self.after))
        return inside and _is_own(file)


_folders = _UserFolders()


def _importing_file() -> str:
    """Return the file of the code that imports a module now."""
    frame = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        importing = file.startswith("<frozen ") or Path(file).is_relative_to(_LIBRARY / "importlib")
        if not importing and frame.f_code not in _OF_FINDER:
            return file
        frame = frame.f_back
    return ""


_OF_FINDER = {_importing_file.__code__, _UserFolders.find_spec.__code__}


def _find_root() -> Path:
    """Return the folder of the user's modules: the current one, or the same folder of another revision."""
    return Path(os.environ.get(CODE_ROOT) or Path.cwd())


def _module(name: str, reference: str) -> ModuleType:
    _folders.add(before=_find_root())
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise Refused(f"{reference}: module {name} cannot be found: {error}; allowed: {FORMS}") from error
    if found is None:
        raise Refused(f"{reference}: there is no module {name} in this folder or installed; allowed: {FORMS}")
    return _guard(lambda: importlib.import_module(name), f"{reference}: importing {name}")


def _file(place: str, reference: str) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise Refused(f"{reference}: there is no file {place}; allowed: {FORMS}")
    name = f"samestep_pair_{path.stem}"  # never the name of a module that somebody else imports
    if getattr(sys.modules.get(name), "__file__", None) == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refused(f"{reference}: {place} cannot be imported; allowed: {FORMS}")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    _give_own_import(module, path.parent)
    # The folder comes first as when Python runs the file. The file may be one of a package that lies here.
    _folders.add(before=path.parent, after=_find_root())
    sys.modules[name] = module  # dataclasses look their own module up
    try:
        _guard(lambda: loader.exec_module(module), f"{reference}: importing {place}")
    except Refused as error:
        del sys.modules[name]  # half a module must not be found by the next call
        if "attempted relative import" in str(error):
            raise Refused(
                f"{reference}: {place} imports relatively, so it is part of a package; allowed: pkg.module:factory, "
                f"from the folder that holds the package, here {_write_as_module(path)}:{reference.rpartition(':')[2]}"
            ) from error
        raise
    return module


def _write_as_module(path: Path) -> str:
    """Return a file's name as a module of the package around it."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists() or len(parts) == 1:
        parts, folder = [folder.name, *parts], folder.parent
    return ".".join(parts)


def _give_own_import(module: ModuleType, folder: Path) -> None:
    """Let a module import files beside it that have the name of one of samestep's packages, such as `compare.py`.

    Everything else is imported as always.
    """
    names = [name for name in _SAMESTEP if (folder / f"{name}.py").is_file()]
    if not names:
        return
    plain = builtins.__import__

    def load(name: str, space: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
        if level == 0 and name in names:
            return _file(str(folder / f"{name}.py"), f"{folder / name}.py")
        return plain(name, space, local, fromlist, level)

    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": load}


def _choose_arguments(
    factory: Callable[..., Any], reference: str, arguments: Mapping[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    named = _read_parameters(factory)
    if named is None:
        return dict(arguments)
    anything = any(each.kind is each.VAR_KEYWORD for each in named.values())
    unknown = [key for key in arguments if key not in named and not anything]
    if unknown:
        raise Refused(
            f"{reference}: the factory takes no argument {unknown[0]!r}; allowed with --model-args: "
            f"{', '.join(named) or 'nothing'}"
        )
    chosen = {key: value for key, value in offered.items() if key in named} | dict(arguments)
    missing = [
        key
        for key, each in named.items()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and key not in chosen
    ]
    if missing:
        raise Refused(f"{reference}: the factory needs {missing[0]!r}; give it with --model-args {missing[0]}=VALUE")
    return chosen


def _read_parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a factory by name, None for a callable of C without a signature.

    A class has those of its `__init__`. Its metaclass, such as flax.nnx's, may hide them behind `*args`.
    """
    made = inspect.getattr_static(factory, "__init__", None) if isinstance(factory, type) else None
    try:
        if inspect.isfunction(made):
            return dict(list(inspect.signature(made).parameters.items())[1:])  # without `self`
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None


def _guard(action: Callable[[], _T], what: str) -> _T:
    try:
        return action()
    except SystemExit as error:
        raise Refused(f"{what} called sys.exit({error.code!r}); allowed: a factory that returns a model") from error
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"{what} raised {type(error).__name__}: {take_first_line(error)}{find_raise(error)}") from error


def find_raise(error: BaseException) -> str:
    """Return the line of the user's own code that raised, as ` (model.py, line 12)`, or an empty text."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_own(each.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def suggest_inputs(error: BaseException) -> str:
    """Return which option names the missing input of a call. An error of another kind gives an empty text."""
    missing = re.search(r"missing \d+ required positional arguments?: '(\w+)'", str(error))
    if not isinstance(error, TypeError) or missing is None:
        return ""
    return (
        f"; a model with several inputs needs their names: --input image=16x16x3 --input {missing[1]}=SHAPE, or "
        f"{missing[1]}=int:BELOW for whole numbers"
    )


def _is_own(file: str) -> bool:
    """Tell whether a file is the user's own: not installed, not Python's and not samestep's."""
    path = Path(file)
    packages = [_ROOT / name for name in ("compare", "jaxbackend", "torchbackend")]
    theirs = {"site-packages", "dist-packages"} & set(path.parts) or file.startswith("<")
    return not theirs and not any(path.is_relative_to(each) for each in (*packages, _LIBRARY))


def _source_sha256(factory: Callable[..., Any]) -> str:
    """Return the digest of the factory's file. A factory without a file, as in C, has the digest of its name."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    factory = inspect.unwrap(factory)
    try:
        path = inspect.getsourcefile(factory if hasattr(factory, "__qualname__") else type(factory))
    except TypeError:
        path = None
    name = f"{getattr(factory, '__module__', None)}.{getattr(factory, '__qualname__', type(factory).__qualname__)}"
    return hashlib.sha256(Path(path).read_bytes() if path else name.encode()).hexdigest()
