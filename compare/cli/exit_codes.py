"""Exit codes of the program."""

from typing import Any

from compare.execution import build_result

CLAIM_FAILED, REFUSED, CONTENDER_FAILED = 1, 2, 3


def exit_code(result: dict[str, Any]) -> int:
    """Return the exit code that a result object ends the program with."""
    if build_result.contender_failed(result):
        return CONTENDER_FAILED
    return CLAIM_FAILED if build_result.claim_failed(result) else 0
