"""Stop timing as soon as a verdict is certain: group-sequential looks whose errors add up to 5 %.

A run looks at its verdict after fixed numbers of rounds. Each look has an error of its own, and its interval has the
confidence 1 - error. By the union bound all intervals hold together with 95 % probability, whatever the run does at a
look (Jennison and Turnbull, Group Sequential Methods with Applications to Clinical Trials, 2000, chapters 7 and 8).
"""

from collections.abc import Mapping, Sequence

LOOKS: Mapping[int, float] = {3: 0.004, 5: 0.011, 10: 0.035}
"""The error of the look after so many valid rounds. The errors add up to 0.05."""

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


def is_final(rounds: int, verdicts: Sequence[str]) -> bool:
    """Return whether a run stops after so many valid rounds: at the last look, or where no verdict is INCONCLUSIVE.

    Args:
        rounds: valid rounds so far.
        verdicts: the verdict of each comparison over these rounds, at the look's `confidence`.
    """
    if rounds >= MOST_ROUNDS:
        return True
    return rounds in LOOKS and all(verdict != "INCONCLUSIVE" for verdict in verdicts)
