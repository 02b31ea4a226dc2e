"""`samestep cache`."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.base.errors import make_printable, suggest
from compare.base.interface import Refused
from compare.cli.command_line import to_path
from compare.store import private_folder
from compare.store.entries import KINDS, Entry, Store

_ACTIONS = ("list", "clear")
_PROGRAMS = "programs"
_LEAST_WIDTH = 100


def cache(
    action: Annotated[str, typer.Argument(metavar="list|clear", help="List what is kept, or delete it.")],
    kind: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Only {', '.join(KINDS[:-1])} or {KINDS[-1]}.", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", parser=to_path, help="The store that --store of a run named."),
    ] = None,
) -> None:
    """List or delete what samestep keeps from run to run, such as certificates and compiled programs."""
    if action not in _ACTIONS:
        raise Refused(f"cache {action}: no such action; allowed: {', '.join(_ACTIONS)}")
    if kind is not None and kind not in KINDS:
        raise Refused(f"--kind {kind} is not allowed; {suggest(kind, KINDS)}allowed: {', '.join(KINDS)}")
    store = Store(private_folder.find_root(folder))
    if action == "list":
        _show(store, kind)
    else:
        typer.echo(f"deleted {_size_text(_clear(store, kind))} in {store.root}")


def _show(store: Store, kind: str | None) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("kind", "what", "date", "size"):
        table.add_column(column, no_wrap=column != "what", justify="right" if column == "size" else "left")
    rows = [entry for entry in [*store.entries(), *_find_programs(store)] if kind in (None, entry.kind)]
    for entry in rows:
        table.add_row(
            entry.kind, Text(make_printable(entry.what)), Text(make_printable(entry.created)), _size_text(entry.size)
        )
    if not rows:
        typer.echo(f"{store.root}: empty")
        return
    console = Console()
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table)
    typer.echo(f"\n{_size_text(sum(entry.size for entry in rows))} in {store.root}")


def _clear(store: Store, kind: str | None) -> int:
    """Delete what is kept of a kind, or all; return the bytes that it took."""
    deleted = store.clear(kind)
    for entry in _find_programs(store) if kind in (None, _PROGRAMS) else ():
        deleted += entry.size
        shutil.rmtree(entry.folder, ignore_errors=True)
    return deleted


def _find_programs(store: Store) -> list[Entry]:
    """Return the compiled programs of each compiler, which keeps them in a folder of its own."""
    known = {entry.folder for entry in store.entries()}
    folders = [path for path in sorted((store.root / _PROGRAMS).glob("*")) if path.is_dir() and path not in known]
    return [Entry(_PROGRAMS, path.name, _date(path), path, f"compiled by {path.name}") for path in folders]


def _date(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
