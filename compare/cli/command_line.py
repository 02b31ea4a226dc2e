"""Command lines, made from the one definition of every option (`compare.settings.options`)."""

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from compare.base.interface import Refused
from compare.cli import pair_options
from compare.settings import options
from compare.settings.kinds import Share
from compare.settings.options import COMMAND_LINE, OWN_MODELS, SETTINGS, Option, Settings

_T = TypeVar("_T")

_FILLED_IN = ("settings", "changes", "words", "as_json", "undecided", "cluster")
"""Parameters of a command that are no options."""


def to_path(text: str) -> Path:
    """Return the path of a file or folder that a user names.

    Raises:
        Refused: for an empty text, which would be the current folder, and for `-`, which elsewhere means standard
            input or output.
    """
    if text in ("", "-"):
        raise Refused(f"{text!r} is no name of a file or folder; allowed: a path, for example ./x")
    return Path(text)


def takes_options(name: str) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Return a decorator that gives a command all options that the definition has for it.

    A parameter `settings` of the command gets all settings as one `Settings`. `changes` gets a dictionary of only the
    settings that the user wrote, and `words` the options as they were written. `as_json` gets --json, and `undecided`
    --undecided. Other parameters, apart from `cluster`, are options of its own.
    """
    offered = options.list_options(name)

    def decorate(command: Callable[..., _T]) -> Callable[..., _T]:
        signature = inspect.signature(command)
        own = [parameter for parameter in signature.parameters.values() if parameter.name not in _FILLED_IN]
        parameters = [*own, *map(functools.partial(_parameter, name), offered)]

        @functools.wraps(command)
        def wrapped(**values: Any) -> _T:
            words = {option.name: values.pop(option.name, None) for option in offered}
            if "words" in signature.parameters:
                values["words"] = dict(words)
            if "as_json" in signature.parameters:
                values["as_json"] = bool(words.pop("as_json"))
            if "undecided" in signature.parameters:
                values["undecided"] = words.pop("undecided") or COMMAND_LINE["undecided"].default
                COMMAND_LINE["undecided"].check(values["undecided"])
            changes = to_settings(words)
            if "changes" in signature.parameters:
                values["changes"] = changes
            elif "settings" in signature.parameters:
                values["settings"] = Settings(**changes)
            return command(**values)

        wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] -- typer reads it
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
        return wrapped

    return decorate


def to_settings(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name for the options of a command line. An option that nobody wrote is None, False or empty.

    Raises:
        Refused: for options that exclude each other, or an incomplete pair of models.
    """
    written = {name: word for name, word in words.items() if word is not None and word is not False and word != []}
    pair = {
        name: word for name, word in written.items() if name in COMMAND_LINE and COMMAND_LINE[name].group == OWN_MODELS
    }
    settings: dict[str, Any] = {}
    flags: defaultdict[str, list[str]] = defaultdict(list)
    for name, word in written.items():
        if name in pair:
            continue
        option = SETTINGS.get(name) or COMMAND_LINE[name]
        for key, value in (option.sets or {name: not word if option.turns_off else word}).items():
            settings[key] = value
            flags[key].append(option.flag)
    if len(flags["rounds"]) > 1:
        raise Refused(f"{' and '.join(flags['rounds'])} exclude each other; allowed: one of --rounds, --quick, --paper")
    if len(flags["cold_compile"]) > 1:
        raise Refused(f"{' and '.join(flags['cold_compile'])} exclude each other; allowed: one of them")
    if pair:
        if "workload" in settings:
            raise Refused("--workload and a pair of your own (--jax, --torch) exclude each other")
        settings["workload"], settings["request"] = pair_options.make_pair(pair)
    return settings


def write_options(words: Mapping[str, Any], command: str) -> list[str]:
    """Return the options that a user wrote, as another command takes them. Its report stays the default one."""
    line = list[str]()
    for option in options.list_options(command):
        word = words.get(option.name)
        if not option.flag or option.name in ("out", "as_json") or word is None or word is False:
            continue
        if word is True:
            line.append(option.flag)
        else:
            values = cast("list[Any]", word) if isinstance(word, list) else [word]
            texts = [f"{value:.12g}" if isinstance(value, float) else str(value) for value in values]
            line += [part for text in texts for part in (option.flag, text)]
    return line


def _parameter(command: str, option: Option) -> inspect.Parameter:
    """Return the parameter from which typer makes an option of a command."""
    kind, default = option.kind.read_as, None
    annotation: Any = kind | None
    info: dict[str, Any] = {"help": option.help_in(command), "metavar": option.metavar or None, "show_default": False}
    if kind is bool:
        annotation, default, info = bool, False, {"help": info["help"], "hidden": option.is_hidden}
    elif kind is list:
        annotation = list[str] | None
    elif kind is Path:
        annotation, info = Path | None, info | {"parser": to_path}
    elif isinstance(option.kind, Share):
        info["parser"] = option.kind.parse
    declaration = typer.Option(option.flag, **info) if option.flag else typer.Argument(**info)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=default,
        annotation=Annotated[annotation, declaration],
    )
