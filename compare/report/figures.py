"""Draw pictures as vector graphics for a paper, and as PNG for a slide. The same result gives the same bytes."""

import io
import os
import re
import textwrap
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from compare.report.palette import find_light
from compare.report.plots.canvas import FONT_POINTS, LETTER_INCHES, Figure, Picture
from compare.report.sentences import make_plain

KINDS = ("pdf", "png", "svg")
_DOTS_PER_INCH = 400  # a column of a paper then fills a slide
_HEADER_LINE_INCHES = 0.14
_CLIP = re.compile(rb"(id=\"|url\(#)(p[0-9a-f]{10})\b")


def draw(picture: Picture, kind: str, *, text: bool = False) -> bytes:
    """Return a picture as the bytes of a PDF, PNG or SVG file.

    A PNG stands alone on a slide, so its title, its setting and its sides are written into it.

    Args:
        picture: the picture.
        kind: one of `KINDS`.
        text: whether an SVG holds letters as text in the reader's font, or as outlines that look the same everywhere.
    """
    metadata = {"Title": make_plain(picture.title), "Creator": None}
    if kind == "png":
        metadata = {"Title": metadata["Title"], "Description": make_plain(picture.basis), "Software": None}
    elif kind == "svg":
        metadata |= {"Description": make_plain(f"{picture.caption} {picture.basis}"), "Date": None}
    else:
        metadata |= {
            "Subject": make_plain(f"{picture.caption} {picture.basis}"),
            "CreationDate": None,
            "Producer": None,
        }
    stream = io.BytesIO()
    with _apply_settings(text):
        figure = picture.draw()
        options: dict[str, Any] = {}
        if kind == "png":
            _write_header(figure, picture)
            options = {"dpi": _DOTS_PER_INCH, "bbox_inches": "tight", "pad_inches": 0.08}
        figure.savefig(stream, format=kind, metadata=metadata, **options)
    return _number_clips(stream.getvalue()) if kind == "svg" else stream.getvalue()


def _write_header(figure: Figure, picture: Picture) -> None:
    """Write title and setting above the panels."""
    width, height = figure.get_size_inches()
    letters = int(width / LETTER_INCHES)
    setting = textwrap.wrap(make_plain(picture.basis).removeprefix("Setting: "), letters)
    title = textwrap.wrap(make_plain(picture.title), letters - 8)
    above = _HEADER_LINE_INCHES * len(setting) / height
    figure.text(0, 1.02 + above, "\n".join(title), va="bottom", weight="bold")
    figure.text(0, 1.02, "\n".join(setting), va="bottom", fontsize=FONT_POINTS - 1)


def _number_clips(drawn: bytes) -> bytes:
    """Number the clip regions of an SVG. matplotlib names them after the last bit of their corners.

    The last bit depends on the processor's order of additions. The coordinates in the file have only six digits.
    """
    numbers = dict[bytes, int]()

    def number(match: re.Match[bytes]) -> bytes:
        return b"%sclip-%d" % (match[1], numbers.setdefault(match[2], 1 + len(numbers)))

    return _CLIP.sub(number, drawn)


@contextmanager
def _apply_settings(text: bool) -> Generator[None]:
    settings = _import_matplotlib()
    ink, muted = find_light("ink"), find_light("muted")
    changes: dict[str, Any] = {
        "axes.edgecolor": muted,
        "axes.labelcolor": ink,
        "axes.linewidth": 0.6,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "figure.facecolor": find_light("paper"),
        "axes.facecolor": "none",
        "font.size": FONT_POINTS,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "pdf.fonttype": 42,  # TrueType: publishers refuse type 3
        "svg.fonttype": "none" if text else "path",
        "svg.hashsalt": "samestep",
        "text.color": ink,
        "text.parse_math": False,  # a contender's name is no formula
        "xtick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.color": muted,
        "ytick.labelcolor": ink,
        "ytick.major.size": 2.5,
        "xtick.major.size": 2.5,
        "xtick.minor.size": 1.5,
        "ytick.minor.size": 1.5,
    }
    with settings.rc_context(), warnings.catch_warnings():
        # A name may have characters that the font lacks. Boxes stand for them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        settings.rcdefaults()  # the reader's own settings do not change our pictures
        settings.rcParams.update(changes)
        yield


def _import_matplotlib() -> Any:
    """Import matplotlib with a backend that needs no window, and return it as untyped.

    The user's variables may name a backend that is not installed, a notebook's for example. Then the import would fail.
    """
    own = {"MPLBACKEND": "agg", "MATPLOTLIBRC": os.devnull}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        import matplotlib
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return matplotlib
