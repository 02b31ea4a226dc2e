"""A campaign: the cells of a campaign file with their states, as text and as `campaign.json`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from compare.base.errors import suggest
from compare.base.interface import Refused
from compare.report.sentences import DASH, count_noun, format_percent, format_ratio_figures, name_winner
from compare.results import result_file
from compare.results.model import Result
from compare.studies import study
from compare.studies.campaign_file import Campaign, CampaignCell
from compare.studies.cell_store import FAILED, PENDING, REFUSED, STATES, CellState
from compare.studies.cells import Place

SCHEMA_VERSION = 1
FILE_NAME = "campaign.json"
_LEAST_KEY = 6  # letters of a key that name a cell
LISTED = ("cell", "state", "result", "took")


def check(campaign: Campaign) -> dict[str, str]:
    """Check every cell as a run would, before anything runs. Return why cells of the grid cannot be done here, by name.

    Raises:
        Refused: `[[comparison]]` asks for what cannot be done here, or no cell can be done.
    """
    refused = dict[str, str]()
    for each in campaign.cells:
        try:
            _ = each.cell.key
        except Refused as error:
            message = f"{campaign.path}, line {each.line}: {each.cell.name}: {error}"
            if each.is_listed or len(refused) == len(campaign.cells) - 1:
                raise Refused(message) from None
            refused[each.cell.name] = str(error)
    return refused


def choose(campaign: Campaign, patterns: Sequence[str], option: str, others: Sequence[str] = ()) -> list[CampaignCell]:
    """Return the cells that patterns name: names with * and ?, or the beginnings of keys. No pattern names all.

    Messages say that `option` also takes `others`.

    Raises:
        Refused: a pattern names no cell.
    """
    chosen = dict[str, CampaignCell]()
    for pattern in patterns:
        named = [each for each in campaign.cells if _is_named(each, pattern)]
        if not named:
            names, wider = [each.cell.name for each in campaign.cells], f"*{pattern}*"
            is_part = any(fnmatchcase(name, wider) for name in names)
            question = f"did you mean {wider!r}? " if is_part else suggest(pattern, [*others, *names])
            allowed = ", ".join((*others, f"a name such as {names[0]!r}, with * for any text, or a key's beginning"))
            raise Refused(f"{option} {pattern!r} names no cell; {question}allowed: {allowed}; --list shows all cells")
        chosen |= {each.cell.name: each for each in named}
    return [each for each in campaign.cells if not patterns or each.cell.name in chosen]


def _is_named(each: CampaignCell, pattern: str) -> bool:
    key = _find_key(each)
    return fnmatchcase(each.cell.name, pattern) or (
        key is not None and len(pattern) >= _LEAST_KEY and key.startswith(pattern)
    )


def _find_key(each: CampaignCell) -> str | None:
    """Return the key of a cell, None if the comparison cannot be done here."""
    try:
        return each.cell.key
    except Refused:
        return None


def to_json(
    campaign: Campaign, states: Mapping[str, CellState], folder: Path, command: Sequence[str]
) -> dict[str, Any]:
    """Return the object of `campaign.json`. Results are paths relative to `folder`."""
    return {
        **result_file.make_head(SCHEMA_VERSION, command),
        "kind": "campaign",
        "name": campaign.name,
        "cells": [_cell_to_json(each, states[each.cell.name], folder) for each in campaign.cells],
    }


def write(campaign: Campaign, states: Mapping[str, CellState], folder: Path, command: Sequence[str]) -> Path:
    """Write the results of all finished cells, and `campaign.json`. Return its path.

    Raises:
        Refused: the file system refuses.
    """
    for each in campaign.cells:
        if (out := each.cell.settings.out) is not None:
            study.write_result(states[each.cell.name], Path(out))
    return result_file.replace(folder / FILE_NAME, to_json(campaign, states, folder, command))


def list_rows(states: Iterable[CellState]) -> list[tuple[str, str, str, str]]:
    """Return a row of text for each cell, under the heads `LISTED`."""
    from compare.studies.estimate import describe

    rows = list[tuple[str, str, str, str]]()
    for state in states:
        status = f"{state.status}, kept" if state.kept else state.status
        took = DASH if state.seconds is None else describe(state.seconds)
        rows.append((state.cell.name, status, "; ".join(_describe(state)) or DASH, took))
    return rows


def count_states(states: Iterable[CellState]) -> str:
    """Return how many cells have each state, in words."""
    listed = [state.status for state in states]
    counts = [f"{listed.count(name)} {name}" for name in STATES if name in listed]
    return f"{count_noun(len(listed), 'cell')}: {', '.join(counts)}"


def describe_places(states: Iterable[CellState]) -> str | None:
    """Return a sentence if cells ran on unlike machines, else None."""
    places = dict[str, list[str]]()
    kinds = dict[str, set[str]]()
    for state in states:
        if state.place is not None and state.result is not None:
            places.setdefault(state.place.text, []).append(state.cell.name)
            kinds.setdefault(state.result.spec.device, set()).add(state.place.text)
    if all(len(texts) < 2 for texts in kinds.values()):
        return None
    where = "; ".join(f"{text}: {', '.join(names)}" for text, names in places.items())
    return f"cells ran on unlike machines, and their times must not be compared with each other: {where}"


def _describe(state: CellState) -> Iterator[str]:
    """Yield what a reader wants to know of a cell: its verdicts, or why there are none."""
    if state.status in (FAILED, REFUSED):
        yield state.reason or "no reason was recorded"
        return
    result = state.result if state.status != PENDING else None
    yield from () if result is None else describe_verdicts(result)


def describe_verdicts(result: Result) -> Iterator[str]:
    """Yield each comparison of a result in a few words."""
    for each in result.comparisons:
        if (ratio := each.claimed_ratio) is None:
            yield f"{each.contender} {each.verdict}: {each.reason or 'no ratio was measured'}"
            continue
        estimate, low, high = format_ratio_figures(ratio)
        interval = f"{format_percent(ratio.confidence, 6)} {low} to {high}"
        winner = f", faster: {name_winner(each)}" if each.verdict in ("FASTER", "SLOWER") else ""
        yield f"{each.contender} {each.verdict} {estimate} ({interval}){winner}"


def _cell_to_json(each: CampaignCell, state: CellState, folder: Path) -> dict[str, Any]:
    path = None
    if state.data is not None and each.cell.settings.out is not None:
        path = (Path(each.cell.settings.out) / result_file.FILE_NAME).relative_to(folder).as_posix()
    return {
        "name": each.cell.name,
        "key": _find_key(each),
        "settings": dict(each.words),
        "status": state.status,
        "reason": state.reason,
        "result": path,
        "place": _place_to_json(state.place),
        "seconds": state.seconds,
        "created": state.created,
    }


def _place_to_json(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else {"device": place.device, **place.facts}
