"""The batch that would have fitted, for a contender that ran out of memory."""

from compare.base.interface import ContenderFailed
from compare.execution.batch_trial import SMALLEST_BATCH, Tester
from compare.settings.contenders import Contender
from compare.settings.plan import Plan


def advice(plan: Plan, contender: Contender) -> str:
    """Return in words the largest batch that trains of a half of the plan's, a quarter and so on, each tried.

    Empty where a try failed for anything else than memory.
    """
    tester, size = Tester(plan, contender, None), plan.batch_size
    parts = plan.accumulate * plan.devices  # of a batch, all equal
    least = SMALLEST_BATCH * parts
    if size <= least:
        return ""  # none smaller can be split; whether this one trains was not tried
    while size > least:
        size = max(least, size // 2 // parts * parts)
        try:
            if tester.fits(size, None):
                return f"batch {size:,} trains"
        except ContenderFailed:
            return ""
    return f"not even batch {least:,} trains"
