"""Stop timing as soon as a verdict is certain: group-sequential looks whose errors add up to 5 %.

A run looks at its verdict after fixed numbers of rounds. Each look has an error of its own, and its interval has the
confidence 1 - error. By the union bound all intervals hold together with 95 % probability, whatever the run does at a
look (Jennison and Turnbull, Group Sequential Methods with Applications to Clinical Trials, 2000, chapters 7 and 8).
"""

from collections.abc import Mapping, Sequence

from compare.base.statistics import Ratio

LOOKS: Mapping[int, float] = {3: 0.004, 5: 0.011, 10: 0.035}
"""The error of the look after so many valid rounds. The errors add up to 0.05."""

GATE_LOOKS: Mapping[int, float] = {3: 0.004, 5: 0.011, 10: 0.02, 20: 0.015}
"""The same for a run that fails above a limit. It takes the last look only while the ratio is near the limit."""

LEAST_ROUNDS = min(LOOKS)
MOST_ROUNDS = max(LOOKS)


def compute_confidence(rounds: int, looks: Mapping[int, float] = LOOKS) -> float:
    """Return the confidence of the interval over so many valid rounds of a run that may stop early.

    Between two looks, after an interruption for example, the error of the next look applies.

    Args:
        rounds: valid rounds, at most those of the last look.
        looks: the error of the look after so many rounds, as a stored result may have others.

    Raises:
        ValueError: for more rounds than the last look has.
    """
    if rounds > max(looks):
        raise ValueError(f"{rounds} rounds; allowed: at most {max(looks)}, the last look")
    return 1 - looks[min(look for look in looks if look >= rounds)]


def to_json(looks: Mapping[int, float] | None) -> dict[str, float] | None:
    """Return the error of each look as JSON, None without looks."""
    return {str(rounds): error for rounds, error in looks.items()} if looks else None


def is_clear(ratio: Ratio, limit: float) -> bool:
    """Return whether more rounds would hardly change on which side of 1 + `limit` a ratio lies.

    Its interval excludes 1 + `limit`, or its estimate is below 1 + `limit` / 2.
    """
    return not ratio.low <= 1 + limit <= ratio.high or ratio.estimate < 1 + limit / 2


def explain_stop(
    rounds: int,
    ratios: Sequence[Ratio],
    verdicts: Sequence[str],
    looks: Mapping[int, float] = LOOKS,
    limit: float | None = None,
) -> str | None:
    """Return why a run stops after so many valid rounds, None if it goes on.

    It stops at the last look, or at a look where no verdict is INCONCLUSIVE. With a limit, it goes on while a ratio is
    near the limit, and after `MOST_ROUNDS` only then.

    Args:
        rounds: valid rounds so far.
        ratios: the ratio of each comparison over these rounds, at the look's `confidence`.
        verdicts: the verdict of each comparison.
        looks: the error of the look after so many rounds.
        limit: the slowdown above which the run fails, 0.03 for 3 %.
    """
    if rounds >= max(looks):
        return f"the maximum of {max(looks)} rounds was reached"
    if rounds not in looks:
        return None
    is_certain = "INCONCLUSIVE" not in verdicts
    if limit is None:
        return "every verdict was certain" if is_certain else None
    if (is_certain or rounds >= MOST_ROUNDS) and all(is_clear(ratio, limit) for ratio in ratios):
        return f"the ratio was clear of the limit of {100 * limit:g} %"
    return None
