"""The command line. Exit codes: 0 done, 1 a claim failed, 2 input refused, 3 a contender failed."""

import errno
import io
import itertools
import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compare import __version__
from compare.base.errors import shorten
from compare.base.interface import MatchingFailed, Refused
from compare.base.interruptions import REPORTED
from compare.cli import (
    agree,
    bundle,
    cache,
    campaign,
    compare,
    diff,
    exit_codes,
    explain,
    fit,
    help,
    ladder,
    launch,
    lists,
    map,
    prepared_run,
    report,
    reproduce,
    scale,
    selftest,
    tune,
    verify,
)
from compare.cli.help import CommandPage, HelpCommand
from compare.cluster import launch_info
from compare.report.sentences import make_printable

_NUMBERS = {"integer": "a whole number", "float": "a number", "number": "a number"}


class _Commands(TyperGroup):
    """Report a text in place of a number as samestep reports a number that is not allowed."""

    def invoke(self, ctx: Any) -> Any:  # typer has moved the class of contexts between versions
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            allowed = next((words for kind, words in _NUMBERS.items() if f"valid {kind}" in error.message), None)
            if allowed is None or error.param is None:
                raise
            option = error.param.opts[0]
            raise Refused(f"{option} {_read_value(option)!r} is not allowed; allowed: {allowed}") from error


def _read_value(option: str) -> str:
    """Return the value of an option as it stands on the command line."""
    apart = [value for name, value in itertools.pairwise(sys.argv) if name == option]
    joined = [word.partition("=")[2] for word in sys.argv if word.startswith(f"{option}=")]
    return [*joined, *apart][-1]


app = typer.Typer(
    cls=_Commands,
    name="samestep",
    help="Train the same CNN in JAX and in PyTorch, prove that both compute the same thing, and compare their speed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"samestep {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version
    command = str(context.invoked_subcommand)
    if command not in launch.COMMANDS and (here := launch_info.read(os.environ)):
        raise Refused(
            f"{here.launcher} started samestep {command} on {here.count} machines; allowed on several: "
            f"{', '.join(launch.COMMANDS)}"
        )


COMMANDS = (
    prepared_run.make_command(compare.compare),
    prepared_run.make_command(explain.explain),
    prepared_run.make_command(agree.agree),
    map.map,
    report.report,
    selftest.selftest,
    fit.fit,
    scale.scale,
    tune.tune,
    ladder.ladder,
    campaign.campaign,
    launch.launch,
    reproduce.reproduce,
    diff.diff,
    bundle.bundle,
    verify.verify,
    cache.cache,
    lists.workloads,
    lists.knobs,
    lists.env,
)
for command in COMMANDS:
    app.command(cls=HelpCommand)(command)


def make_reference() -> list[CommandPage]:
    """Return the help page of every command, for the reference in the documentation."""
    return help.make_pages(typer.main.get_command(app))


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_LONGEST_LINE, _MOST_LINES = 1000, 100  # of a message, in characters and lines
_STDIN, _STDOUT, _STDERR = 0, 1, 2  # of the process: Python's own may be closed


class _Ending:
    """Handles signals that end the program. Those after the first wait until everything is cleaned up."""

    def __init__(self) -> None:
        self.has_begun = False

    def __call__(self, number: int, _frame: object) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _is_reported(error: BaseException | None) -> bool:
    """Tell whether an exception, or one that led to it, belongs to an interruption that has a message."""
    while error is not None:
        if REPORTED in getattr(error, "__notes__", ()):
            return True
        error = error.__context__
    return False


def _explain_shortage(error: BaseException) -> str | None:
    """Return a sentence about a resource that ran out, or None if the error has another cause."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "memory ran out in samestep's own process; allowed: more memory, or a smaller batch or data set"
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return f"cannot write {error.filename or 'the output'}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error.strerror}; allowed: a higher limit of open files (ulimit -n)"
    if getattr(error, "errno", None) == errno.EAGAIN or "can't start new thread" in str(error):
        return "the system starts no more processes or threads; allowed: a higher limit (ulimit -u)"
    return None


def _open_standard_streams() -> None:
    """Open the standard streams that are closed. Otherwise a pipe gets such a number, and a child writes into it."""
    for number in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number


def main() -> None:
    """Run the program."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the locale may lack a dash
    ending = _Ending()  # ends the children on the way out
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # nohup ignores SIGHUP
            signal.signal(number, ending)
    try:
        try:
            app(prog_name="samestep")
        finally:
            if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] -- closed before the start
                sys.stdout.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the reader has read enough, and this is no error
            sys.exit(128 + signal.SIGPIPE)
        if ending.has_begun and not _is_reported(end):
            typer.echo("samestep: interrupted", err=True)
        raise
    except Refused as error:
        # It may quote a file by somebody else.
        lines = [shorten(make_printable(line), _LONGEST_LINE) for line in str(error).splitlines()[:_MOST_LINES]]
        typer.echo("samestep: " + "\n".join(lines), err=True)
        sys.exit(exit_codes.CONTENDER_FAILED if isinstance(error, MatchingFailed) else exit_codes.REFUSED)
    except (OSError, MemoryError, RuntimeError) as error:
        sentence = _explain_shortage(error)
        if sentence is None:
            raise
        typer.echo(f"samestep: {sentence}", err=True)
        os.close(_STDOUT)  # Python writes the rest at its end
        os.open(os.devnull, os.O_WRONLY)  # the lowest free number
        sys.exit(exit_codes.REFUSED)
