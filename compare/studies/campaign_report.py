"""The one report of a campaign: a table of all cells, the matrix, a section for each cell, a picture, and a bundle."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compare.base import files
from compare.report import compact, figures, matrix, sections
from compare.report.document import Part, Report, Section, Table
from compare.report.formats import find_formats
from compare.report.plots.canvas import Absent, Picture
from compare.report.sentences import DASH
from compare.reproduce import collection
from compare.results.model import Result
from compare.studies import campaign as campaigns
from compare.studies.campaign_file import Campaign
from compare.studies.cell_store import CellState

MOST_DRAWN = 20
"""Cells whose own pictures a page shows. More would take minutes to draw."""

_PAGES = {"html": "report.html", "markdown": "report.md", "latex": "report.tex"}


def make_report(campaign: Campaign, states: Sequence[CellState], *, is_full: bool) -> Report:
    """Return the report of a campaign. With `is_full` it has a section for each cell."""
    results = _list_results(states)
    said = f"Campaign {campaign.name}: {campaigns.count_states(states)}"
    evidence = f"{said}. {matrix.summarise(results)}" if results else said
    tables = [_make_cell_table(states)]
    picture = None
    if results:
        tables += [compact.make_table(results), *matrix.make_overview(results).tables]
        picture = compact.make_section(results).picture
    unlike = campaigns.describe_places(states)
    overview = Section(
        name="campaign", title="All cells", picture=picture, tables=tables, lines=[f"{unlike}."] if unlike else ()
    )
    parts = [_make_part(state, len(results)) for state in states if state.result] if is_full else []
    return Report(said, evidence, overview, parts)


def write(campaign: Campaign, states: Sequence[CellState], folder: Path) -> list[Path]:
    """Write the pages, the picture and the bundle of a campaign into its folder. Return their paths.

    Raises:
        Refused: the file system refuses, or there are too many results for one bundle.
    """
    whole, short = (make_report(campaign, states, is_full=is_full) for is_full in (True, False))
    results, contents = _list_results(states), dict[Path, bytes]()
    assert short.overview is not None
    if isinstance(picture := short.overview.picture, Picture):
        contents |= {folder / f"{picture.name}.{kind}": figures.draw(picture, kind) for kind in figures.KINDS}
    drawn = {name: name for name in short.pictures()} if contents else {}
    for each in find_formats():
        if name := _PAGES.get(each.name):
            report = whole if each.name == "html" else short
            links = {name: f"{name}.{each.pictures}" for name in drawn} if each.pictures else {}
            page = each.render(report, results, links)
            contents[folder / name] = page.encode() if isinstance(page, str) else page
    campaign_file = folder / campaigns.FILE_NAME
    extras = {path.name: content for path, content in contents.items()}
    extras[campaigns.FILE_NAME] = campaign_file.read_bytes()
    if data := [state.data for state in states if state.data is not None]:
        contents[folder / f"{campaign.name}.zip"] = collection.make(data, extras)
    files.write(contents)
    return list(contents)


def _list_results(states: Sequence[CellState]) -> list[Result]:
    return [result for state in states if (result := state.result) is not None]


def _make_cell_table(states: Sequence[CellState]) -> Table:
    rows = [
        (state.cell.name, state.status, described, state.place.text if state.place else DASH)
        for state, (_, _, described, _) in zip(states, campaigns.list_rows(states), strict=True)
    ]
    caption = "Every cell with its state. A cell that failed or was refused says why."
    return Table("cells", caption, ("cell", "state", "result", "ran on"), rows, prose=True)


def _make_part(state: CellState, count: int) -> Part:
    assert state.result is not None
    part = sections.make_part(state.result)
    if count <= MOST_DRAWN:
        return part
    absent = Absent("the campaign has many cells; samestep report --figures draws this one")
    return replace(
        part,
        sections=[
            replace(each, picture=absent) if isinstance(each.picture, Picture) else each for each in part.sections
        ],
    )
