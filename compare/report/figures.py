"""Pictures as files: vector graphics that a paper can include as they are, the same bytes for the same result."""

import io
import os
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from compare.report.palette import light
from compare.report.plots.canvas import FONT_POINTS, Picture
from compare.report.sentences import plain

KINDS = ("pdf", "svg")
_CLIP = re.compile(rb"(id=\"|url\(#)(p[0-9a-f]{10})\b")


def vector(picture: Picture, kind: str, *, text: bool = False) -> bytes:
    """Draw a picture as `svg` or `pdf`; the same picture always gives the same bytes.

    Args:
        picture: what to draw.
        kind: `svg` or `pdf`.
        text: in SVG, letters as text in the reader's font, else as outlines that look the same everywhere.
    """
    told = {"Title": plain(picture.title), "Creator": None}
    if kind == "svg":
        told |= {"Description": plain(f"{picture.caption} {picture.basis}"), "Date": None}
    else:
        told |= {"Subject": plain(f"{picture.caption} {picture.basis}"), "CreationDate": None, "Producer": None}
    stream = io.BytesIO()
    with _settings(text):
        figure = picture.draw()
        figure.savefig(stream, format=kind, metadata=told)
    return _numbered(stream.getvalue()) if kind == "svg" else stream.getvalue()


def _numbered(drawn: bytes) -> bytes:
    """Number the clip regions of an SVG, which matplotlib names after their corners, exact to the last bit.

    That bit is another one where another processor adds up in another order; what is drawn has six digits.
    """
    numbers = dict[bytes, int]()

    def number(found: re.Match[bytes]) -> bytes:
        return b"%sclip-%d" % (found[1], numbers.setdefault(found[2], 1 + len(numbers)))

    return _CLIP.sub(number, drawn)


@contextmanager
def _settings(text: bool) -> Generator[None]:
    settings = _matplotlib()
    ink, muted = light("ink"), light("muted")
    changes: dict[str, Any] = {
        "axes.edgecolor": muted,
        "axes.labelcolor": ink,
        "axes.linewidth": 0.6,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "figure.facecolor": light("paper"),
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
        # A name may have characters that the font lacks; boxes stand for them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        settings.rcdefaults()  # the reader's own settings do not change our pictures
        settings.rcParams.update(changes)
        yield


def _matplotlib() -> Any:
    """Return matplotlib, whose own keys have types of their own, asked for no window.

    What the reader's variables ask for may not be there, such as a notebook's backend, and ends the import.
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
