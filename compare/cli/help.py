"""The help page of a command: options in groups, the most used ones first, each with an example."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand

from compare.settings import options
from compare.settings.options import GROUPS, OUTPUT

_MOST_USED = "Most used"
_OTHER = "Options"
_FEW = 8
"""A page with no more options than this has no groups."""

_INDENT, _COLUMN = 2, 26


@dataclass(frozen=True)
class HelpRow:
    """One option as a reader sees it, or one argument.

    Attributes:
        term: how it is written, such as `--seed N`.
        text: the help, without the default.
        default: the default in words; "" for none.
        example: how a user writes it; "" for none.
        group: one of `compare.settings.options.GROUPS`, or "" for an argument.
        unit: the unit of its value; "" for none.
        rank: its place among the most used options, from 1; 0 for all others.
    """

    term: str
    text: str
    default: str = ""
    example: str = ""
    group: str = _OTHER
    unit: str = ""
    rank: int = 0

    def lines(self, width: int) -> Iterator[str]:
        """Return the row's lines, with the text beside the term, or below a long one."""
        term = " " * _INDENT + self.term
        default = f"Default: {self.default}." if self.default else ""
        last = f"{default} Example: {self.example}".strip() if self.example else ""
        wrapped = _wrap(self.text if last else f"{self.text} {default}", width - _COLUMN)
        yield term if len(term) > _COLUMN - 2 else f"{term:{_COLUMN}}{wrapped.pop(0)}"
        yield from (" " * _COLUMN + line for line in wrapped)
        if last:
            column = min(_COLUMN, max(_INDENT, width - len(last)))
            yield from (" " * column + line for line in _wrap(last, width - column))


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def make_rows(command: Any) -> list[HelpRow]:
    """Return a row for every argument and option of a command of typer's, in the order of the help page."""
    defined = {option.name: option for option in options.list_options(command.name or "")}
    page: list[HelpRow] = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        is_argument = parameter.param_type_name == "argument"
        flag = "" if is_argument else parameter.opts[0]
        option = defined.get(parameter.name)
        metavar = parameter.metavar or ""
        several = is_argument and parameter.nargs != 1 and not metavar.endswith("...")
        term = f"{flag} {metavar}{' ...' if several else ''}".strip()
        group = "" if is_argument else getattr(parameter, "rich_help_panel", None) or _OTHER
        if option is None:
            default = str(parameter.default) if parameter.show_default and parameter.default else ""
            page.append(HelpRow(term, parameter.help or "", "" if default == "True" else default, group=group))
        else:
            page.append(
                HelpRow(
                    term,
                    option.help_in(command.name),
                    option.default_in(command.name),
                    option.examples.get(command.name, option.example),
                    "" if is_argument else option.group,
                    option.unit,
                    option.rank,
                )
            )
    order = ["", _OTHER, *GROUPS]
    return sorted(page, key=lambda row: order.index(row.group))


@dataclass(frozen=True)
class CommandPage:
    """The help page of one command."""

    name: str
    text: str
    rows: Sequence[HelpRow]


def make_page(command: Any) -> CommandPage:
    """Return the help page of a command of typer's."""
    return CommandPage(command.name, textwrap.dedent(command.help or "").strip(), make_rows(command))


def _sections(every: Sequence[HelpRow]) -> Iterator[tuple[str, list[HelpRow]]]:
    """Return each heading with its rows."""
    listed = [row for row in every if row.group]
    yield "Arguments", [row for row in every if not row.group]
    if len(listed) <= _FEW:
        yield _OTHER, listed
        return
    yield _MOST_USED, sorted((row for row in listed if row.rank), key=lambda row: row.rank)
    for group in (_OTHER, *GROUPS):
        yield group, [row for row in listed if row.group == group and not row.rank]


class HelpCommand(TyperCommand):
    """A command whose help page has these groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of the help page."""
        del ctx
        every = [*make_rows(self), HelpRow("--help", "Show this page.", group=OUTPUT)]
        for heading, section in _sections(every):
            if section:
                with formatter.section(heading):
                    for row in section:
                        formatter.write("".join(f"{line}\n" for line in row.lines(formatter.width)))
