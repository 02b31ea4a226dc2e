"""Read a campaign file: TOML with `name`, `[defaults]`, `[grid]` and `[[comparison]]`.

Keys are the names of the settings of `samestep compare`, and of its options for a pair of your own models. A fault is
reported with its line.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from compare.base import arguments, untrusted
from compare.base.errors import suggest
from compare.base.interface import INFER, Refused
from compare.base.workloads import Workload
from compare.settings import options, plan, tasks
from compare.settings.options import COMMAND_LINE, OWN_MODELS, SETTINGS, Settings
from compare.settings.pair_spec import Request
from compare.studies.cells import Cell

MOST_CELLS = 10_000

_TOP = ("name", "defaults", "grid", "comparison")
_ALIASES = {"input": "image"}
_SIZE_LIMIT, _LONGEST_LINE = 2**20, 10_000  # bytes, and characters
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*=")
_BARE = ("workload", "precision", "device", "task")
"""Settings whose values tell by themselves what they are."""

MakePair = Callable[[Mapping[str, Any]], tuple[Workload, Request]]


@dataclass(frozen=True)
class CampaignCell:
    """A cell of a campaign.

    Attributes:
        cell: the comparison.
        words: its settings as the file writes them.
        line: where the file asks for it.
        is_listed: whether `[[comparison]]` names it, and not the grid.
    """

    cell: Cell
    words: Mapping[str, Any]
    line: int
    is_listed: bool


@dataclass(frozen=True)
class Campaign:
    """A campaign file.

    Attributes:
        name: its name, which is also that of the default output folder.
        cells: all comparisons, each once.
        path: the file.
    """

    name: str
    cells: Sequence[CampaignCell]
    path: Path


def list_keys() -> list[str]:
    """Return the keys that a comparison of a campaign file may have."""
    settings = options.list_python_names("compare")
    words = [name for name in ("tuning", "knobs", "parallel") if name in SETTINGS]
    own = [name for name, option in COMMAND_LINE.items() if option.group == OWN_MODELS]
    left_out = {"out", "store", "request"}
    return sorted({*settings, *words, *own, *_ALIASES, "quick", "paper"} - left_out)


def read(path: Path, make_pair: MakePair, *, out: Path | None = None, store: str | Path | None = None) -> Campaign:
    """Return the campaign of a file. Every key and value is checked by itself.

    Args:
        path: the file.
        make_pair: makes the workload of a pair of the option words of the user's own models.
        out: the folder of the report. Default: samestep-out/NAME.
        store: the option --store.

    Raises:
        Refused: with the file's name and the line of the fault.
    """
    try:
        data = untrusted.read(path, _SIZE_LIMIT, "a campaign file in TOML")
    except Refused as error:
        raise Refused(f"{path}: {error}") from None
    return _Reader(path, data.decode("utf-8", "replace"), make_pair).read(out, store)


@dataclass
class _Reader:
    path: Path
    text: str
    make_pair: MakePair
    _folders: set[str] = field(default_factory=set[str])

    def read(self, out: Path | None, store: str | Path | None) -> Campaign:
        values = self._parse()
        for key in values:
            if key not in _TOP:
                raise self._refuse(
                    self._line("", key), f"unknown key {key!r}; {suggest(key, _TOP)}allowed: {', '.join(_TOP)}"
                )
        name = values.get("name", self.path.stem)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            allowed = "up to 64 letters, digits and . _ -, beginning with a letter or digit"
            raise self._refuse(self._line("", "name"), f"name {name!r} is not allowed; allowed: {allowed}")
        defaults = self._table(values.get("defaults", {}), "defaults", 0)
        grid = self._table(values.get("grid", {}), "grid", 0)
        listed: Any = values.get("comparison", [])
        if not isinstance(listed, list):
            raise self._refuse(self._line("comparison", ""), "comparison is no list; allowed: [[comparison]] tables")
        tables = [self._table(each, "comparison", index) for index, each in enumerate(cast("list[Any]", listed))]
        cells = [*self._combine(defaults, grid), *self._list(defaults, tables)]
        if not cells:
            raise Refused(f"{self.path} names no comparison; allowed: [grid] with lists, or [[comparison]]")
        folder = out or Path("samestep-out") / name
        return Campaign(name, self._place(cells, folder, store), self.path)

    def _parse(self) -> dict[str, Any]:
        for number, line in enumerate(self.text.splitlines(), start=1):
            if len(line) > _LONGEST_LINE:  # a key of many parts would take minutes
                raise self._refuse(number, f"is too long; allowed: {_LONGEST_LINE:,} characters")
        try:
            return tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise Refused(f"{self.path}: is no valid TOML: {error}; allowed: a campaign file in TOML") from None
        except RecursionError:
            raise Refused(f"{self.path}: is nested too deeply; allowed: tables with lists of values") from None

    def _table(self, table: Any, name: str, index: int) -> dict[str, Any]:
        """Return a table with every key checked, under the names of the settings."""
        line = self._line(name, "", index)
        if not isinstance(table, dict):
            raise self._refuse(line, f"{name} is no table; allowed: [{name}]")
        allowed, found = list_keys(), dict[str, Any]()
        for key, value in cast("dict[str, Any]", table).items():
            where = self._line(name, key, index)
            if key not in allowed:
                raise self._refuse(
                    where, f"unknown key {key!r} in [{name}]; {suggest(key, allowed)}allowed: {', '.join(allowed)}"
                )
            if name == "grid" and (not isinstance(value, list) or not value):
                raise self._refuse(where, f"{key} in [grid] is no list with values; allowed: a list of values")
            setting = _ALIASES.get(key, key)
            for each in cast("list[object]", value if name == "grid" else [value]):
                self._check(setting, each, where)
            found[setting] = value
        return found

    def _check(self, name: str, value: Any, line: int) -> None:
        option = SETTINGS.get(name) or COMMAND_LINE[name]
        try:
            option.check(_to_setting(name, value), json.dumps)  # TOML and JSON write true and false
            if name == "workload":
                plan.find_workload(value)
        except Refused as error:
            raise self._refuse(line, arguments.rename_options(str(error))) from None

    def _combine(self, defaults: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> Iterator[CampaignCell]:
        """Yield a cell for each combination of the grid's lists, the last list changing first."""
        count = 1
        for values in grid.values():
            count *= len(values)
        if count > MOST_CELLS:
            raise self._refuse(self._line("grid", ""), f"[grid] has {count:,} cells; allowed: {MOST_CELLS:,}")
        for values in itertools.product(*grid.values()) if grid else ():
            own = dict(zip(grid, values, strict=True))
            yield self._make(defaults, own, self._line("grid", ""), is_listed=False)

    def _list(self, defaults: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> Iterator[CampaignCell]:
        for index, own in enumerate(tables):
            yield self._make(defaults, own, self._line("comparison", "", index), is_listed=True)

    def _make(self, defaults: Mapping[str, Any], own: Mapping[str, Any], line: int, *, is_listed: bool) -> CampaignCell:
        words = _merge(defaults, own)
        try:
            settings = _to_settings(words, self.make_pair)
            settings.check()
        except Refused as error:
            raise self._refuse(line, arguments.rename_options(str(error))) from None
        shown = {key: words[key] for key in ("workload", *own) if key in words}
        return CampaignCell(Cell(_describe(shown), settings), words, line, is_listed)

    def _place(self, cells: Sequence[CampaignCell], folder: Path, store: str | Path | None) -> list[CampaignCell]:
        """Return the cells with a unique name and a folder of their own. A cell that is asked for twice stays once."""
        placed, seen = list[CampaignCell](), set[str]()
        for each in cells:
            identity = json.dumps(dict(each.words), sort_keys=True, default=str)
            if identity in seen:
                continue
            seen.add(identity)
            name, number = each.cell.name, 1
            while to_folder(name) in self._folders:
                number += 1
                name = f"{each.cell.name} #{number}"
            self._folders.add(to_folder(name))
            settings = replace(each.cell.settings, out=folder / "cells" / to_folder(name), store=store)
            placed.append(CampaignCell(Cell(name, settings), each.words, each.line, each.is_listed))
        return placed

    def _line(self, table: str, key: str, index: int = 0) -> int:
        """Return the line of a key in a table, or of the table's head if the key is not found there."""
        here, heads, head_line = "", dict[str, int](), 1
        for number, line in enumerate(self.text.splitlines(), start=1):
            if head := _HEADER.match(line):
                here = head[2].strip("\"' ")
                heads[here] = heads.get(here, -1) + 1
                if here == table and heads[here] == index:
                    head_line = number
                    if not key:
                        return number
                elif here == key and not table:
                    return number
            elif here == table and heads.get(here, 0) == index and _read_key(line) == key:
                return number
        return head_line

    def _refuse(self, line: int, message: str) -> Refused:
        return Refused(f"{self.path}, line {line}: {message}")


def _read_key(line: str) -> str | None:
    """Return the key that a line of TOML gives a value, or None."""
    match = _KEY.match(line)
    return match[1].strip("\"'") if match else None


def to_folder(name: str) -> str:
    """Return the name of the folder of a cell."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:120] or "cell"


def _merge(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of a cell. What a cell says itself replaces defaults that exclude it."""
    left_out = set[str]()
    if "workload" in own:
        left_out |= {name for name, option in COMMAND_LINE.items() if option.group == OWN_MODELS}
    if {"jax", "torch"} & own.keys():
        left_out.add("workload")
    if {"rounds", "quick", "paper"} & own.keys():
        left_out |= {"rounds", "quick", "paper"}
    if {"tuning", "knobs"} & own.keys():
        left_out |= {"tuning", "knobs"}
    if "task" in own:
        left_out |= {*tasks.list_settings_of_other_task(own["task"])}
        if own["task"] == INFER and "batch_sizes" in {*defaults, *own}:
            left_out.add("batch_size")
    return {name: value for name, value in defaults.items() if name not in left_out or name in own} | dict(own)


def _to_setting(name: str, value: Any) -> Any:
    """Return a value of TOML as the option takes it. A single text stands for a list where the command line repeats."""
    if name == "weights_map" and isinstance(value, str):
        return Path(value)
    repeats = name in COMMAND_LINE and COMMAND_LINE[name].kind.read_as is list
    return [value] if repeats and isinstance(value, str) else value


def _to_settings(words: Mapping[str, Any], make_pair: MakePair) -> Settings:
    """Return the settings of a cell.

    Raises:
        Refused: for settings that exclude each other, or an incomplete pair.
    """
    own = {
        name: _to_setting(name, value)
        for name, value in words.items()
        if name in COMMAND_LINE and COMMAND_LINE[name].group == OWN_MODELS
    }
    settings: dict[str, Any] = {name: value for name, value in words.items() if name in SETTINGS}
    rounds = [name for name in ("rounds", "quick", "paper") if words.get(name)]
    if len(rounds) > 1:
        raise Refused(f"{' and '.join(rounds)} exclude each other; allowed: one of them")
    for name in ("quick", "paper"):
        if words.get(name):
            settings = {**COMMAND_LINE[name].sets, **settings}
    if own:
        if "workload" in settings:
            raise Refused("workload and a pair of your own (jax, torch) exclude each other")
        settings["workload"], settings["request"] = make_pair(own)
    return Settings(**settings)


def _describe(shown: Mapping[str, Any]) -> str:
    """Return a short name for a cell: the values that the file gives it."""
    words = list[str]()
    for name, value in shown.items():
        if name in ("jax", "image", "classes", "model_args", "weights_map", "weights_from", "allow"):
            continue
        text = " ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)
        if isinstance(value, bool):
            text = str(value).lower()
        bare = name in (*_BARE, "contenders", "torch")
        words.append(text if bare else f"{name.replace('_', ' ')} {text}")
    return ", ".join(words) or "defaults"
