"""A quick step time refuses a loss that is not finite."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import step_time


@pytest.mark.parametrize("loss", [1.0, float("nan"), float("inf")])
def test_a_step_time_of_a_loss_that_is_not_finite_is_refused(loss: float) -> None:
    session = SimpleNamespace(losses=lambda: np.array([2.0, loss]))
    worker: Any = SimpleNamespace(
        warm_up=lambda *_: SimpleNamespace(steps_per_block=2, steady=True),
        block=lambda steps: steps * 1e-3,
        _open_session=session,
    )
    if np.isfinite(loss):
        assert step_time.measure(worker) == {"milliseconds": 1.0, "fastest": 1.0, "slowest": 1.0, "steady": True}
    else:
        with pytest.raises(SystemExit, match="the loss is not finite"):
            step_time.measure(worker)
