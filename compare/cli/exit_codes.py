"""Exit codes of the program."""

from compare.results import verdicts
from compare.results.model import Result

CLAIM_FAILED, REFUSED, CONTENDER_FAILED = 1, 2, 3


def exit_code(result: Result) -> int:
    """Return the exit code for a result."""
    if verdicts.contender_failed(result):
        return CONTENDER_FAILED
    return CLAIM_FAILED if verdicts.claim_failed(result) else 0
