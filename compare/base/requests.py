"""Requests: forward passes in evaluation mode. What both backends keep of their answers, and how a loss is read off.

A backend that takes the task `infer` opens a `compare.base.interface.Session` for it, with these meanings:

- A step is a request. `run` answers the fed batches in turn, and `feed` chooses the batch size by theirs.
- `losses` are those of the last `KEPT` answers. They show that the answers are right, and they are not timed.
- `inspect` answers one batch, and returns `logits` and `activation/LAYER`.
- `export` waits for the last answer. Its state holds no arrays, and `step` counts the answers since `assign`.
- `program` says in words where the program of the fed batch size came from.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from compare.base.interface import Array, Session

FED = 4
"""The most batches that a session is fed. They differ, so that an answer to another one would show."""

KEPT = 3
"""Answers that a session keeps."""


class InferenceSession(Session, Protocol):
    """A session that answers requests."""

    @property
    def task(self) -> str:
        """Return `infer`."""
        ...

    def program(self) -> str:
        """Return in words where the program of the fed batch size came from."""
        ...

    def answers(self) -> list[Array]:
        """Wait, and return the logits of the last `KEPT` requests."""
        ...


class Answers:
    """The last answers of a session, as they lie on the device.

    Attributes:
        count: the number of answers since the last `reset`.
    """

    def __init__(self, fetch: Callable[[Any], Array]) -> None:
        """`fetch` waits for an answer and copies it to the host."""
        self._fetch = fetch
        self._last: deque[tuple[Any, int]] = deque(maxlen=KEPT)
        self._labels: Sequence[Array] = ()
        self.count = 0

    def reset(self) -> None:
        """Begin to count anew."""
        self._last.clear()
        self.count = 0

    def feed(self, labels: Sequence[Array]) -> None:
        """Take the labels of new batches, and forget the answers to others."""
        self._labels = labels
        self._last.clear()

    def add(self, answer: Any, index: int) -> None:
        """Keep the answer to the fed batch of that index."""
        self._last.append((answer, index))
        self.count += 1

    @property
    def newest(self) -> Any:
        """The last answer on the device, None if there is none."""
        return self._last[-1][0] if self._last else None

    def logits(self) -> list[Array]:
        """Wait, and return the last answers."""
        return [self._fetch(answer) for answer, _ in self._last]

    def losses(self) -> Array:
        """Wait, and return the mean cross-entropy of each of the last answers."""
        return np.array([cross_entropy(self._fetch(answer), self._labels[index]) for answer, index in self._last])


def cross_entropy(logits: Array, labels: Array) -> float:
    """Return the mean cross-entropy of logits [..., classes] with labels [...], in float64."""
    wide = np.asarray(logits, np.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    of_labels = np.take_along_axis(shifted, labels[..., None].astype(np.int64), -1)[..., 0]
    return float((np.log(np.exp(shifted).sum(-1)) - of_labels).mean())
