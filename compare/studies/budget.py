"""The budget of a search: the seconds that are left, and how many of them its next part will take.

A search sees how long its certificates and trials take. It keeps time for the certificate of the winner.
"""

from time import monotonic

_TRIAL_SHARE = 0.25
"""About the share of a certificate's time that the trial of one tuning takes, until a trial has been seen."""

_RESERVE = 1.2
"""The time that is kept for a certificate, over that of the longest one so far."""


class Budget:
    """The seconds of a search over several backends, each with an equal share of what is left.

    Args:
        seconds: of the whole search.
        backends: the number of backends.
    """

    def __init__(self, seconds: float, backends: int) -> None:
        self.seconds, self._waiting = seconds, backends
        self._begin = self._end = monotonic()
        self._tuning_seconds = self._certificate_seconds = 0.0

    def begin_backend(self) -> None:
        """Give the next backend its share, and forget how long things took with the one before."""
        self._tuning_seconds = self._certificate_seconds = 0.0
        self._end = monotonic() + max(0.0, self.seconds - self.passed) / self._waiting
        self._waiting -= 1

    @property
    def passed(self) -> float:
        """The seconds since the search began."""
        return monotonic() - self._begin

    @property
    def left(self) -> float:
        """The seconds that are left to this backend, 0 or more."""
        return max(0.0, self._end - monotonic())

    @property
    def trial_seconds(self) -> float:
        """The seconds that are left for trials, without those that are kept for a certificate."""
        return max(0.0, self.left - _RESERVE * self._certificate_seconds)

    def note_trial(self, seconds: float, tunings: int) -> None:
        """Learn from a trial of several tunings. The slowest one counts, as the machine may be as busy again."""
        self._tuning_seconds = max(self._tuning_seconds, seconds / tunings)

    def note_certificate(self, seconds: float) -> None:
        """Learn from a certificate."""
        self._certificate_seconds = max(self._certificate_seconds, seconds)

    def count_tunings(self) -> int:
        """Return how many tunings can be timed together now, so that time for the certificate is left."""
        each = self._tuning_seconds or _TRIAL_SHARE * self._certificate_seconds
        return int(self.trial_seconds / each) if each else 2
