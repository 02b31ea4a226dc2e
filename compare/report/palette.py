"""The colours of every picture and of the page, in light and in dark.

Contenders take their colours in order from the palette of Okabe and Ito, which colour-blind readers can tell apart
(jfly.uni-koeln.de/color). Each colour is made darker or lighter until text in it has a contrast of 4.5 with the paper.
No picture depends on colour alone.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Tone(NamedTuple):
    """One colour, as it is on light and on dark paper."""

    light: str
    dark: str


TONES: Mapping[str, Tone] = {
    "paper": Tone("#ffffff", "#14171b"),
    "ink": Tone("#1b1e22", "#e9e7e3"),
    "muted": Tone("#5b626b", "#a3abb5"),
    "rule": Tone("#c9ced4", "#434a53"),
    "band": Tone("#e9edf1", "#272d34"),
    "void": Tone("#f6ddd0", "#4d2c1c"),
    "series-1": Tone("#0067a8", "#5cb6f2"),
    "series-2": Tone("#b04600", "#ff9a5c"),
    "series-3": Tone("#00734f", "#3fcf9f"),
    "series-4": Tone("#9c3f78", "#ec9fcb"),
    "series-5": Tone("#806000", "#e3bb4a"),
    "series-6": Tone("#4a4a4a", "#c4c4c4"),
}

SERIES = tuple(tone.light for name, tone in TONES.items() if name.startswith("series-"))
"""Colours of contenders, in order, on light paper."""


def find_light(name: str) -> str:
    """Return a colour on light paper. Pictures are drawn in light colours."""
    return TONES[name].light
