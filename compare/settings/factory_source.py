"""Write the source of factories that a notebook or a script defines to a file that children can import.

A factory needs other definitions, imports and constants of its cell. They are found by name and written before it.
"""

import ast
import hashlib
import inspect
import linecache
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from compare.base.interface import Refused

FOLDER = Path("samestep-out", "factories")
"""The folder of written sources, below the current folder. Results name the files, so they stay."""

_WRITTEN_OUT = (bool, int, float, str, bytes, type(None))


def write_reference(side: str, factory: object) -> str:
    """Return the reference `FILE:NAME` of a factory. A text is a reference already.

    Raises:
        Refused: this is a model instead of a factory, or something whose source cannot be found.
    """
    if isinstance(factory, str):
        return factory
    name = getattr(factory, "__name__", "")
    if not isinstance(factory, (types.FunctionType, type)):
        kind = type(factory).__name__
        raise Refused(
            f"{side} is a {kind} object; allowed: a function that makes it, because each process makes its own: "
            f"def make_{side}(): return {kind}(...), and then {side}=make_{side}"
        )
    if not name.isidentifier() or "<locals>" in factory.__qualname__:
        raise Refused(f"{side} is {factory.__qualname__}; allowed: a function or class that stands in no other one")
    file = _find_file(factory)
    if file is not None:
        return f"{file}:{name}"
    text = _Writer(factory).write()
    path = FOLDER / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"{path}:{name}"


def _find_file(factory: Callable[..., Any]) -> str | None:
    """Return the file of an importable module that defines a factory, or None for a notebook or a running script."""
    if factory.__module__ == "__main__":
        return None
    file = inspect.getsourcefile(factory)
    return file if file is not None and Path(file).is_file() else None


class _Writer:
    """Collects the source of an object of `__main__` and of everything that it needs there."""

    def __init__(self, factory: Callable[..., Any]) -> None:
        self._factory = factory
        self._imports, self._definitions = dict[str, None](), dict[str, str]()
        self._visiting = set[str]()

    def write(self) -> str:
        """Return the text of the module."""
        self._define(self._factory.__name__, self._factory)
        return "\n".join([*self._imports, "", *self._definitions.values()]) + "\n"

    def _define(self, name: str, value: Any) -> None:
        if name in self._definitions or name in self._visiting:
            return
        self._visiting.add(name)
        source, scope = _find_source(name, value)
        for needed in _list_names(source):
            if needed != name and needed in scope:
                self._add(needed, scope[needed])
        self._definitions[name] = f"\n{source}"

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            self._imports[f"import {value.__name__} as {name}"] = None
        elif isinstance(value, _WRITTEN_OUT) or _is_plain(value):
            self._definitions.setdefault(name, f"{name} = {value!r}")
        elif getattr(value, "__module__", None) == "__main__" and isinstance(value, (types.FunctionType, type)):
            self._define(name, value)
        elif getattr(value, "__module__", None) and getattr(value, "__qualname__", "").isidentifier():
            self._imports[f"from {value.__module__} import {value.__qualname__} as {name}"] = None
        else:
            raise Refused(
                f"{self._factory.__name__} uses {name}, a {type(value).__name__} that cannot be written to a file; "
                "allowed: to make it within the factory"
            )


def _is_plain(value: Any) -> bool:
    """Tell whether a value is a tuple, list or dict of constants."""
    if isinstance(value, (tuple, list)):
        return all(isinstance(each, _WRITTEN_OUT) or _is_plain(each) for each in cast("list[Any]", value))
    if isinstance(value, dict):
        return all(map(_is_plain, [list(each) for each in cast("dict[Any, Any]", value).items()]))
    return False


def _find_source(name: str, value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the text of a definition, and the names that it sees.

    Raises:
        Refused: its text is not known.
    """
    for function in _list_functions(value):
        lines = linecache.getlines(function.__code__.co_filename, function.__globals__)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                last = node.end_lineno or node.lineno
                if first <= function.__code__.co_firstlineno <= last:
                    text = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines[first - 1 : last])
                    return text, function.__globals__
    raise Refused(
        f"the source of {name} is not known to Python; allowed: a function of a notebook's cell or of a file, or a "
        "reference FILE.py:NAME"
    )


def _list_functions(value: Any) -> Iterator[types.FunctionType]:
    """Yield the functions of an object: itself, or the methods of a class without their wrappers."""
    members: list[Any] = list(vars(value).values()) if isinstance(value, type) else [value]
    for each in members:
        function = inspect.unwrap(each) if callable(each) else each
        if isinstance(function, types.FunctionType) and function.__module__ == "__main__":
            yield function


def _list_names(source: str) -> list[str]:
    """Return the names that a definition reads, in order of appearance."""
    names = [node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(names))
