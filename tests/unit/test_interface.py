"""What backends and samestep share."""

import pytest

from compare.interface import first_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("out\nof memory", "out"),
        ("\n  late\n", "late"),
        ("", "no message"),
        (" \n", "no message"),
        ("a" * 401, "a" * 400),
    ],
)
def test_an_error_is_told_in_one_line(message: str, line: str) -> None:
    assert first_line(RuntimeError(message)) == line
