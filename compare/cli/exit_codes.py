"""Exit codes of the program, and its end by a signal. The program's start imports this file before all others."""

import os
import signal

TYPE_CHECKING = False  # type checkers take it for True
if TYPE_CHECKING:
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


def end_at_once(number: int, _frame: object) -> None:
    """Handle a signal during an import: say so, and end as a signal ends a process.

    Some libraries would turn an exception in their import into another one.
    """
    os.write(2, b"samestep: interrupted\n")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
