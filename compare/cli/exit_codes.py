"""Exit codes of the program."""

from compare.results import verdicts
from compare.results.model import Result

CLAIM_FAILED, REFUSED, CONTENDER_FAILED, UNDECIDED = 1, 2, 3, 4


def exit_code(result: Result, undecided: str = "pass") -> int:
    """Return the exit code for a result. `undecided` is the option --undecided."""
    if verdicts.contender_failed(result):
        return CONTENDER_FAILED
    if verdicts.claim_failed(result):
        return CLAIM_FAILED
    return UNDECIDED if undecided == "fail" and verdicts.is_undecided(result) else 0
