"""`samestep report`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console

from compare.base import files, output
from compare.base.interface import Refused
from compare.cli.command_line import to_path
from compare.report import (
    certificate_text,
    csv,
    figures,
    html,
    latex,
    markdown,
    matrix,
    terminal,
)
from compare.report.document import Report
from compare.report.plots.canvas import Picture
from compare.results import result_file, verdicts
from compare.studies import scaling_report, scaling_result, scaling_sections


def report(
    result: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT",
            parser=to_path,
            help="A result.json, or its folder. Several make a matrix. A result of scale stands alone.",
        ),
    ],
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", parser=to_path, help="Write one page with everything.")
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", parser=to_path, help="Write tables for GitHub."),
    ] = None,
    latex_file: Annotated[
        Path | None,
        typer.Option("--latex", metavar="FILE", parser=to_path, help="Write tables in booktabs style, for \\input."),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", parser=to_path, help="Write a row for each timed block.")
    ] = None,
    figure_folder: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", parser=to_path, help="Write every picture as PDF and SVG."),
    ] = None,
) -> None:
    """Show stored results, or write them as pages, tables and figures.

    Without an option the report goes to the terminal. The folders of files must exist.
    """
    sources = [result_file.named(path) for path in result]
    found = [_loaded(path) for path in sources]
    _check_each_is_given_once(sources, found)
    _check_kinds(sources, found, csv_file)
    asked = {"--html": html_file, "--markdown": markdown_file, "--latex": latex_file, "--csv": csv_file}
    pages = {option: page for option, page in asked.items() if page}
    if not pages and not figure_folder:
        _print(found)
        return
    for option, page in pages.items():
        output.check_there(option, page.parent)
    if figure_folder:
        output.check_there("--figures", figure_folder)
    made = _report(found)
    drawings: dict[Path, tuple[Picture, str]] = {}
    if figure_folder:
        pictures = made.pictures()
        if not pictures:
            reasons = "; ".join(made.undrawn())
            allowed = "two and more numbers of devices" if _is_scaling(found[0]) else "a result with times or losses"
            raise Refused(f"--figures: there is nothing to draw: {reasons}; allowed: {allowed}")
        for name, picture in pictures.items():
            drawings |= {figure_folder / f"{name}.{kind}": (picture, kind) for kind in figures.KINDS}
    _check_names([*pages.values(), *drawings], sources)
    contents = {page: _page(option, page, made, found, figure_folder).encode() for option, page in pages.items()}
    contents |= {path: figures.vector(picture, kind) for path, (picture, kind) in drawings.items()}
    files.write(contents)
    for path in contents:
        typer.echo(f"report file: {path}")


def _page(option: str, page: Path, made: Report, found: Sequence[Mapping[str, Any]], figure_folder: Path | None) -> str:
    """Return what the file of that option holds."""
    match option:
        case "--html":
            return html.render(made)
        case "--markdown":
            links = _links(made, figure_folder, page, "svg")
            return markdown.render(made, {name: quote(link) for name, link in links.items()})
        case "--latex":
            return latex.render(made, _links(made, figure_folder, page, "pdf"))
        case _:
            return csv.render(found)


def _loaded(path: Path) -> dict[str, Any]:
    """Return a result that says of itself what its figures say: any other could not be reported truly."""
    try:
        return result_file.load_true(path)
    except result_file.OfScale:
        return scaling_result.load(path)


def _is_scaling(result: Mapping[str, Any]) -> bool:
    return "scaling" in result


def _check_each_is_given_once(sources: Sequence[Path], found: Sequence[Mapping[str, Any]]) -> None:
    for number, each in enumerate(found):
        first = found.index(each)
        if first < number:
            raise Refused(f"{sources[number]}: the same result as {sources[first]}; allowed: each result once")


def _check_kinds(sources: Sequence[Path], found: Sequence[Mapping[str, Any]], csv_file: Path | None) -> None:
    scalings = [path for path, each in zip(sources, found, strict=True) if _is_scaling(each)]
    if scalings and len(found) > 1:
        raise Refused(f"{scalings[0]}: a result of samestep scale with others is not allowed; allowed: alone")
    if csv_file and scalings:
        raise Refused("--csv: a scaling has no blocks of its own; allowed: the results under devices-N")
    if csv_file and not any(each["step_seconds"] for result in found for each in result["contenders"]):
        raise Refused("--csv: no round was timed, so that there are no blocks; allowed: a result with a whole round")


def _report(found: Sequence[Mapping[str, Any]]) -> Report:
    if not _is_scaling(found[0]):
        return matrix.report(found)
    part = scaling_sections.part(found[0])
    return Report(part.claim, part.verdict, None, [part])


def _print(found: Sequence[Mapping[str, Any]]) -> None:
    console = Console()
    if _is_scaling(found[0]):
        scaling_report.render(found[0], console)
        return
    if len(found) > 1:
        terminal.render_matrix(matrix.overview(found), console)
    for index, result in enumerate(found):
        if len(found) > 1:
            console.rule(f"{index + 1}", align="left", style="", characters="-")
        if verdicts.is_comparison(result):
            terminal.render(result, console)
        else:
            certificate_text.render(result, console, verbose=False)


def _check_names(targets: Sequence[Path], sources: Iterable[Path]) -> None:
    """Refuse to write one file twice, or over a result that is reported."""
    taken = {_resolved(source) for source in sources}
    for target in targets:
        if _resolved(target) in taken:
            raise Refused(f"{target} would be written over a result or another report; allowed: a name of its own")
        taken.add(_resolved(target))


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise Refused(f"{path} cannot be followed: {error}") from error


def _links(made: Report, folder: Path | None, page: Path, kind: str) -> dict[str, str]:
    """Return each picture's path relative to a page. It is empty if no pictures are written."""
    if folder is None:
        return {}
    way = Path(os.path.relpath(folder.resolve(), page.resolve().parent))
    return {name: (way / f"{name}.{kind}").as_posix() for name in made.pictures()}
