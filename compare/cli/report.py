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
    """Show stored results, or write them as pages and tables.

    Without an option the report goes to the terminal. The folders of files must exist.
    """
    sources = [result_file.named(path) for path in result]
    results = [_load(path) for path in sources]
    _check_for_repetition(sources, results)
    _check_kinds(sources, results, csv_file)
    files_by_option = {"--html": html_file, "--markdown": markdown_file, "--latex": latex_file, "--csv": csv_file}
    pages = {option: page for option, page in files_by_option.items() if page}
    if not pages and not figure_folder:
        _print(results)
        return
    for option, page in pages.items():
        output.check_there(option, page.parent)
    if figure_folder:
        output.check_there("--figures", figure_folder)
    document = _report(results)
    drawings: dict[Path, tuple[Picture, str]] = {}
    if figure_folder:
        pictures = document.pictures()
        if not pictures:
            reasons = "; ".join(document.undrawn())
            allowed = "two and more numbers of devices" if _is_scaling(results[0]) else "a result with times or losses"
            raise Refused(f"--figures: there is nothing to draw: {reasons}; allowed: {allowed}")
        for name, picture in pictures.items():
            drawings |= {figure_folder / f"{name}.{kind}": (picture, kind) for kind in figures.KINDS}
    _check_names([*pages.values(), *drawings], sources)
    contents = {page: _page(option, page, document, results, figure_folder).encode() for option, page in pages.items()}
    contents |= {path: figures.vector(picture, kind) for path, (picture, kind) in drawings.items()}
    files.write(contents)
    for path in contents:
        typer.echo(f"report file: {path}")


def _page(
    option: str, page: Path, document: Report, results: Sequence[Mapping[str, Any]], figure_folder: Path | None
) -> str:
    """Return what the file of that option holds."""
    match option:
        case "--html":
            return html.render(document)
        case "--markdown":
            links = _links(document, figure_folder, page, "svg")
            return markdown.render(document, {name: quote(link) for name, link in links.items()})
        case "--latex":
            return latex.render(document, _links(document, figure_folder, page, "pdf"))
        case _:
            return csv.render(results)


def _load(path: Path) -> dict[str, Any]:
    """Return a result that says of itself what its figures say: any other could not be reported truly."""
    try:
        return result_file.load_true(path)
    except result_file.OfScale:
        return scaling_result.load(path)


def _is_scaling(result: Mapping[str, Any]) -> bool:
    return "scaling" in result


def _check_for_repetition(sources: Sequence[Path], results: Sequence[Mapping[str, Any]]) -> None:
    for number, result in enumerate(results):
        first = results.index(result)
        if first < number:
            raise Refused(f"{sources[number]}: the same result as {sources[first]}; allowed: each result once")


def _check_kinds(sources: Sequence[Path], results: Sequence[Mapping[str, Any]], csv_file: Path | None) -> None:
    scalings = [path for path, result in zip(sources, results, strict=True) if _is_scaling(result)]
    if scalings and len(results) > 1:
        raise Refused(f"{scalings[0]}: a result of samestep scale with others is not allowed; allowed: alone")
    if csv_file and scalings:
        raise Refused("--csv: a scaling has no blocks of its own; allowed: the results under devices-N")
    if csv_file and not any(contender["step_seconds"] for result in results for contender in result["contenders"]):
        raise Refused("--csv: no round was timed, so that there are no blocks; allowed: a result with a whole round")


def _report(results: Sequence[Mapping[str, Any]]) -> Report:
    if not _is_scaling(results[0]):
        return matrix.report(results)
    part = scaling_sections.part(results[0])
    return Report(part.claim, part.verdict, None, [part])


def _print(results: Sequence[Mapping[str, Any]]) -> None:
    console = Console()
    if _is_scaling(results[0]):
        scaling_report.render(results[0], console)
        return
    if len(results) > 1:
        terminal.render_matrix(matrix.overview(results), console)
    for index, result in enumerate(results):
        if len(results) > 1:
            console.rule(f"{index + 1}", align="left", style="", characters="-")
        if verdicts.is_comparison(result):
            terminal.render(result, console)
        else:
            certificate_text.render(result, console, verbose=False)


def _check_names(targets: Sequence[Path], sources: Iterable[Path]) -> None:
    """Refuse to write one file twice, or over a result that is reported."""
    taken = {_resolve(source) for source in sources}
    for target in targets:
        if _resolve(target) in taken:
            raise Refused(f"{target} would be written over a result or another report; allowed: a name of its own")
        taken.add(_resolve(target))


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise Refused(f"{path} cannot be followed: {error}") from error


def _links(document: Report, folder: Path | None, page: Path, kind: str) -> dict[str, str]:
    """Return each picture's path relative to a page. It is empty if no pictures are written."""
    if folder is None:
        return {}
    way = Path(os.path.relpath(folder.resolve(), page.resolve().parent))
    return {name: (way / f"{name}.{kind}").as_posix() for name in document.pictures()}
