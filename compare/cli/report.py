"""`samestep report`."""

import inspect
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compare.base import files, output
from compare.base.interface import Refused
from compare.cli.command_line import to_path
from compare.report import certificate_text, compact, figures, matrix, mlflow_export, terminal
from compare.report.document import Report
from compare.report.formats import Format, find_formats
from compare.report.plots.canvas import Picture
from compare.reproduce import stored_result
from compare.results import result_file
from compare.results.model import Result
from compare.studies import scaling_report, scaling_result, scaling_sections
from compare.studies.scaling_model import Scaling


def report(
    result: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT",
            parser=to_path,
            help="A result.json, its folder, or a bundle. Several results make one table. One of scale stands alone.",
        ),
    ],
    figure_folder: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", parser=to_path, help="Write every picture as PDF, PNG and SVG."),
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="Log the figures to this MLflow server or store.")
    ] = None,
    is_full: Annotated[
        bool, typer.Option("--full", help="Of several results, report every section and picture of each.")
    ] = False,
    **format_files: Path | None,
) -> None:
    """Show stored results, or write them as pages and tables.

    Without an option the report goes to the terminal. Several results give one table and one picture.
    """
    found = [(result_file.find_file(path), each) for path in result for each in _load(path)]
    sources, loaded = [source for source, _ in found], [each for _, each in found]
    _check_each_is_given_once(sources, loaded)
    pages = [(each, page) for each in find_formats() if (page := format_files[each.option])]
    _check_kinds(sources, loaded, [page_format for page_format, _ in pages])
    _check_figures_are_unlike(sources, loaded, [page_format for page_format, _ in pages])
    if mlflow is not None:
        typer.echo(f"MLflow runs: {mlflow_export.log(_results(loaded), mlflow)} new ones in {mlflow}")
    if not pages and not figure_folder:
        if mlflow is not None:
            return
        _print(loaded, is_full)
        return
    report = _report(loaded, is_full)
    drawings = _drawings(report, figure_folder, isinstance(loaded[0], Result)) if figure_folder else {}
    _check_names([*(page for _, page in pages), *drawings], sources)
    contents = {
        page: _encode(page_format.render(report, _results(loaded), _links(report, figure_folder, page, page_format)))
        for page_format, page in pages
    }
    for page_format, page in pages:
        output.make_file_folder(f"--{page_format.name}", page.parent)
    if figure_folder:
        output.make_file_folder("--figures", figure_folder)
    contents |= {path: figures.draw(picture, kind) for path, (picture, kind) in drawings.items()}
    files.write(contents)
    for path in contents:
        typer.echo(f"report file: {path}")


def _encode(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _add_format_options() -> None:
    """Give the command an option for each format, in place of `format_files`."""
    signature = inspect.signature(report)
    *parameters, figure_folder, _ = signature.parameters.values()
    for page_format in find_formats():
        option = typer.Option(f"--{page_format.name}", metavar="FILE", parser=to_path, help=page_format.help)
        kind = Annotated[Path | None, option]
        parameters.append(inspect.Parameter(page_format.option, figure_folder.kind, default=None, annotation=kind))
        report.__annotations__[page_format.option] = kind
    report.__signature__ = signature.replace(parameters=[*parameters, figure_folder])  # type: ignore[attr-defined] -- typer reads it


_add_format_options()


def _load(path: Path) -> Sequence[Result | Scaling]:
    """Return the results of a file. Their verdicts follow from their figures, for no other can be reported truly."""
    try:
        return stored_result.load_all(path)
    except result_file.OfScale:
        return [scaling_result.load(result_file.find_file(path))]


def _results(loaded: Sequence[Result | Scaling]) -> list[Result]:
    return [each for each in loaded if isinstance(each, Result)]


def _check_each_is_given_once(sources: Sequence[Path], loaded: Sequence[Result | Scaling]) -> None:
    for number, result in enumerate(loaded):
        first = loaded.index(result)
        if first < number:
            raise Refused(f"{sources[number]}: the same result as {sources[first]}; allowed: each result once")


def _check_kinds(sources: Sequence[Path], loaded: Sequence[Result | Scaling], formats: Sequence[Format]) -> None:
    scalings = [path for path, each in zip(sources, loaded, strict=True) if not isinstance(each, Result)]
    if scalings and len(loaded) > 1:
        raise Refused(f"{scalings[0]}: a result of samestep scale is allowed alone only, not with others")
    for of_blocks in (f"--{each.name}" for each in formats if each.is_of_blocks):
        if scalings:
            raise Refused(f"{of_blocks}: a scaling has no blocks of its own; allowed: the results under devices-N")
        if not any(contender.list_series() for result in _results(loaded) for contender in result.contenders):
            raise Refused(f"{of_blocks}: no block was timed; allowed: a result with a complete round")


def _check_figures_are_unlike(
    sources: Sequence[Path], loaded: Sequence[Result | Scaling], formats: Sequence[Format]
) -> None:
    """Refuse results of equal work in one file of a format that knows figures by name alone."""
    for each in formats:
        owners = dict[str, Path]()
        for source, result in zip(sources, loaded, strict=True):
            names = sorted(each.list_names(result)) if isinstance(result, Result) else []
            for name in names:
                if name in owners:
                    where = f"{owners[name]} and {source}" if owners[name] != source else f"two results of {source}"
                    raise Refused(
                        f"--{each.name}: {where} both have {name!r}, and one would hide the other; allowed: a file "
                        "for each"
                    )
            owners |= dict.fromkeys(names, source)


def _drawings(report: Report, folder: Path, is_comparison: bool) -> dict[Path, tuple[Picture, str]]:
    """Return every picture with its kind of file, by the path of that file."""
    pictures = report.pictures()
    if not pictures:
        allowed = "a result with times or losses" if is_comparison else "two or more numbers of devices"
        raise Refused(f"--figures: there is nothing to draw: {'; '.join(report.undrawn())}; allowed: {allowed}")
    return {folder / f"{name}.{kind}": (picture, kind) for name, picture in pictures.items() for kind in figures.KINDS}


def _report(loaded: Sequence[Result | Scaling], is_full: bool) -> Report:
    first, results = loaded[0], _results(loaded)
    if isinstance(first, Result):
        return compact.report(results) if len(results) > 1 and not is_full else compact.report_in_full(results)
    part = scaling_sections.build_part(first)
    return Report(part.claim, part.verdict, None, [part])


def _print(loaded: Sequence[Result | Scaling], is_full: bool) -> None:
    console, results = Console(), _results(loaded)
    for scaling in loaded:
        if not isinstance(scaling, Result):
            scaling_report.render(scaling, console)
    if len(results) > 1:
        terminal.render_summary(results, console)
        if not is_full:
            typer.echo("\n--full adds every section of each result")
            return
        terminal.render_matrix(matrix.make_overview(results), console)
    for number, result in enumerate(results, start=1):
        if len(results) > 1:
            console.rule(str(number), align="left", style="", characters="-")
        if result.spec.is_comparison:
            terminal.render(result, console)
        else:
            certificate_text.render(result, console, verbose=False)


def _check_names(targets: Sequence[Path], sources: Iterable[Path]) -> None:
    """Refuse to write one file twice, or over a reported result."""
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


def _links(report: Report, folder: Path | None, page: Path, page_format: Format) -> dict[str, str]:
    """Return the path from a page to each picture, empty if no pictures are written."""
    if folder is None or not page_format.pictures:
        return {}
    way = Path(os.path.relpath(folder.resolve(), page.resolve().parent))
    return {name: (way / f"{name}.{page_format.pictures}").as_posix() for name in report.pictures()}
