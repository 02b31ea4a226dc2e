"""Exit codes of the program."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the program's start needs the numbers only
    from compare.results.model import Result

CLAIM_FAILED, REFUSED, CONTENDER_FAILED, UNDECIDED = 1, 2, 3, 4


def exit_code(result: "Result", undecided: str = "pass") -> int:
    """Return the exit code for a result. `undecided` is the option --undecided."""
    from compare.results import verdicts

    if verdicts.contender_failed(result):
        return CONTENDER_FAILED
    if verdicts.claim_failed(result):
        return CLAIM_FAILED
    return UNDECIDED if undecided == "fail" and verdicts.is_undecided(result) else 0
