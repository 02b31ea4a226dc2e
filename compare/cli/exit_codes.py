"""What commands share at their end: exit codes, and the folder that results go to."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compare.execution import build_result

CLAIM_FAILED, REFUSED, CONTENDER_FAILED = 1, 2, 3


def default_out() -> Path:
    """Return a folder named after the present microsecond: runs may start together, and none is to replace another."""
    return Path("samestep-out") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")


def exit_code(result: dict[str, Any]) -> int:
    """Return the exit code that a result object ends the program with."""
    if build_result.contender_failed(result):
        return CONTENDER_FAILED
    return CLAIM_FAILED if build_result.claim_failed(result) else 0
