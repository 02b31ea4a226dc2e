"""What a job's log shows while a command works: standard error is no terminal there."""

import pytest

from compare.execution import progress


def test_the_log_of_a_long_job_has_a_line_a_minute(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    seconds = 1000.0
    monkeypatch.setattr(progress, "monotonic", lambda: seconds)
    with progress.show("2 devices: ") as advance:
        advance("certify", 0, 7)
        seconds = 1059.9
        advance("certify", 3, 7)
        seconds = 1060.0
        advance("certify", 4, 7)
        seconds = 1119.9
        advance("timed rounds", 1, 5)
        seconds = 1754.0
        advance("timed rounds", 2, 5)
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines() == ["  1:00  2 devices: certify 4/7", " 12:34  2 devices: timed rounds 2/5"]


def test_a_terminal_has_no_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    with progress.show() as advance:
        advance("certify", 1, 7)
    assert "\r" in (shown := capsys.readouterr().err)
    assert "0:00  certify" not in shown
