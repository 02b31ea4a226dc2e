"""The file formats of a report, a file each, which defines `FORMAT`. To add a format, add a file here."""

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from compare.report.document import Report
from compare.results.model import Result


@dataclass(frozen=True)
class Format:
    """A file format of a report.

    Attributes:
        name: of the option, without the dashes.
        help: the option's help.
        render: return the file's text or bytes for a report, its results, and the paths of pictures by name.
        pictures: the suffix of linked pictures, "" if the text links to none.
        list_names: return the names under which the file has a result's figures. Two results must not share one.
        is_of_blocks: whether it holds timed blocks, which a scaling does not have.
    """

    name: str
    help: str
    render: Callable[[Report, Sequence[Result], Mapping[str, str]], str | bytes]
    pictures: str = ""
    list_names: Callable[[Result], Collection[str]] = lambda _: ()
    is_of_blocks: bool = False

    @property
    def option(self) -> str:
        """The name of its parameter in Python."""
        return self.name.replace("-", "_")


@cache
def find_formats() -> tuple[Format, ...]:
    """Return every format, in the order of their names."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return tuple(module.FORMAT for module in modules)
