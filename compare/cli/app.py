"""The command line. Exit codes: 0 done, 1 a claim failed, 2 input refused, 3 a contender failed."""

import errno
import io
import itertools
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperGroup

from compare import __version__
from compare.base.errors import MatchingFailed, Refused, make_printable, shorten
from compare.base.interruptions import REPORTED
from compare.cli import exit_codes
from compare.cluster import launch_info

if TYPE_CHECKING:
    from compare.cli.help import CommandPage


class Entry(NamedTuple):
    """One line of `samestep --help`. The command is the function of its name in `compare.cli.MODULE`."""

    module: str
    summary: str
    is_prepared: bool = False
    """Whether the function prepares a comparison, which `prepared_run` executes."""
    example: str = ""
    """Arguments for a command that needs some."""


_BUNDLE = "benchmarks/h200/resnet50-bfloat16.zip"

COMMANDS = {
    "compare": Entry("compare", "Train, certify and time contenders.", is_prepared=True),
    "explain": Entry("explain", "Show why one contender is slower.", is_prepared=True),
    "agree": Entry("agree", "Prove that contenders compute the same thing.", is_prepared=True),
    "map": Entry("map", "Match the layers of your own pair."),
    "report": Entry("report", "Show stored results, or write them as pages and tables.", example=_BUNDLE),
    "selftest": Entry("selftest", "Prove that samestep measures correctly on this machine."),
    "fit": Entry("fit", "Find the largest batch that fits into memory."),
    "scale": Entry("scale", "Compare contenders on more and more devices."),
    "tune": Entry("tune", "Search the fastest knobs of each backend."),
    "ladder": Entry("ladder", "Climb from the tutorial's form to the best known one."),
    "campaign": Entry("campaign", "Run the comparisons of a file.", example="examples/campaign.toml"),
    "launch": Entry("launch", "Run one comparison on several machines.", example="--slurm --nodes 2 -- compare"),
    "reproduce": Entry("reproduce", "Repeat the run of a stored result.", example=_BUNDLE),
    "diff": Entry("diff", "Find what became slower or larger between two results."),
    "bundle": Entry(
        "bundle", "Pack results and all that they need into one zip file.", example="samestep-out/* --out results.zip"
    ),
    "verify": Entry("verify", "Check a bundle or a result offline.", example=_BUNDLE),
    "cache": Entry("cache", "List or delete what samestep keeps from run to run.", example="list"),
    "workloads": Entry("lists", "List what can be trained."),
    "knobs": Entry("lists", "List the knobs, and the tunings made of them."),
    "env": Entry("lists", "Print this machine's packages, devices and variables."),
}

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NUMBERS = {"integer": "a whole number", "float": "a number", "number": "a number"}


class _Commands(TyperGroup):
    """Import a command at its call. Report a text in place of a number like a number that is not allowed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS, cast("Any", None))  # typer suggests these names for a wrong one

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        return _load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:  # typer has moved the class of contexts between versions
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if type(error).__name__ == "MissingParameter" and (said := _describe_missing(error)):
                raise Refused(said) from error
            allowed = next((words for kind, words in _NUMBERS.items() if f"valid {kind}" in error.message), None)
            if allowed is None or error.param is None:
                raise
            option = error.param.opts[0]
            allowed = _describe_number(error.param, allowed)
            raise Refused(f"{option} {_read_value(option)!r} is not allowed; allowed: {allowed}") from error
        except Exception as error:  # typer has moved the classes of its errors, too
            flag = str(getattr(error, "option_name", ""))
            others = _list_commands_with(flag)
            if type(error).__name__ != "NoSuchOption" or not others:
                raise
            raise Refused(f"No such option: {flag}; the option belongs to {', '.join(others)}") from error


def _describe_missing(error: Any) -> str | None:
    """Return a sentence with an example for a command that lacks an argument or option, or None without an example."""
    name, parameter = error.ctx.info_name, error.param
    example = COMMANDS[name].example if name in COMMANDS else ""
    missing = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[0]
    return f"samestep {name} needs {missing}; for example: samestep {name} {example}" if example else None


def _describe_number(parameter: Any, words: str) -> str:
    """Return the numbers that an option takes, with their unit."""
    from compare.settings.options import COMMAND_LINE, SETTINGS

    option = SETTINGS.get(parameter.name) or COMMAND_LINE.get(parameter.name)
    return option.kind.allowed if option else f"{words} ({parameter.metavar})"


def _list_commands_with(flag: str) -> list[str]:
    """Return the commands that take an option of the common definition."""
    from compare.settings.options import list_options

    return [name for name in COMMANDS if flag in {option.flag for option in list_options(name) if option.flag}]


def _read_value(option: str) -> str:
    """Return the value of an option as it stands on the command line."""
    apart = [value for name, value in itertools.pairwise(sys.argv) if name == option]
    joined = [word.partition("=")[2] for word in sys.argv if word.startswith(f"{option}=")]
    return [*joined, *apart][-1]


def _load(name: str) -> Any:
    """Import the module of a command. Return the command."""
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        if isinstance(handlers[number], _Ending):
            signal.signal(number, exit_codes.end_at_once)
    from compare.cli import prepared_run
    from compare.cli.help import HelpCommand

    entry = COMMANDS[name]
    function = getattr(import_module(f"compare.cli.{entry.module}"), name)
    for number, handler in handlers.items():
        if isinstance(handler, _Ending):
            signal.signal(number, handler)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, cls=HelpCommand)(prepared_run.make_command(function) if entry.is_prepared else function)
    return typer.main.get_command(app)


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
    here = launch_info.read(os.environ)
    if here is None:
        return
    from compare.cli.launch import COMMANDS as allowed

    command = str(context.invoked_subcommand)
    if command not in allowed:
        raise Refused(
            f"{here.launcher} started samestep {command} on {here.count} machines; allowed on several: "
            f"{', '.join(allowed)}"
        )


def make_reference() -> "list[CommandPage]":
    """Return the help page of every command, for the reference in the documentation."""
    from compare.cli import help

    return [help.make_page(_load(name)) for name in COMMANDS]


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
    for number in _ENDING:
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
