"""The linear classifier of `tests.fakebackend.session` answering requests, on the scripted clock.

Faults of the arithmetic:
- `batch-statistics`: logits depend on the other images of the batch.
- `cast`: logits lose digits, as by a cast to float16.
- `skip`: every tenth request has no answer.
- `late`: an answer is computed only when it is read.
- `aged`: the logits are half as large after 60 requests.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compare.base.interface import Array, Arrays, Batch, State
from compare.base.requests import Answers
from tests.fakebackend.session import FakeSession

_OLD = 60


class FakeInferenceSession(FakeSession):
    task = "infer"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._answers = Answers(np.asarray)
        self._images: list[Array] = []
        self._requests = 0

    def assign(self, arrays: Arrays) -> None:
        super().assign(arrays)
        self._answers.reset()

    def feed(self, batches: Sequence[Batch]) -> None:
        self._script.at("feed")
        self._finish()
        self._images = [self._rows(batch.values()) for batch in batches]
        self._answers.feed([batch.labels for batch in batches])
        self._fed = 0

    def losses(self) -> Array:
        self._finish()
        return self._answers.losses()

    def answers(self) -> list[Array]:
        self._finish()
        return self._answers.logits()

    def program(self) -> str:
        return "fake"

    def inspect(self, batch: Batch) -> Arrays:
        self._script.at("inspect")
        logits = self._answer(self._rows(batch.values()))
        return {"activation/dense": logits, "logits": logits}

    def export(self) -> State:
        self._script.at("export")
        self._finish()
        return State({}, {}, {}, self._answers.count)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"batch_size": len(self._images[0])}

    def _rows(self, images: Array) -> Array:
        return images.reshape(len(images), -1).astype(self._dtype)

    def _answer(self, images: Array) -> Array:
        logits = self._forward(images)
        if self._script.has("batch-statistics"):
            logits = logits - logits.mean(0) / 2
        if self._script.has("cast"):
            logits = logits.astype(np.float16).astype(self._dtype)
        return logits / 2 if self._script.has("aged") and self._requests > _OLD else logits

    def _finish(self) -> None:
        """Answer the queued requests and let their time pass. A request of more images takes longer."""
        if not self._queued or self._script.has("never-wait"):
            return
        requests, self._queued = self._queued, 0
        for _ in range(requests):
            index = self._fed % len(self._images)
            self._fed, self._requests = self._fed + 1, self._requests + 1
            if self._script.has("skip") and self._requests % 10 == 0:
                continue
            self._answers.add(self._answer(self._images[index]), index)
        self._script.advance(0.99 * requests * self._slowdown * len(self._images[0]) ** 0.5)
