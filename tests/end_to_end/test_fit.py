"""`samestep fit` with both frameworks on a CPU: what it finds holds when it is tried again."""

from pathlib import Path

import pytest

from compare.execution import bisection
from compare.settings.options import Settings
from compare.studies import fit_result, fitting
from compare.studies.fitting import MEBIBYTE

MEMORY = 300
BATCH = 64


@pytest.mark.thorough
def test_both_frameworks_end_at_an_edge_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every try compiles in a process of its own: a coarse search is enough to see that there is an edge.
    monkeypatch.setattr(bisection, "RESOLUTION", 0.5)
    monkeypatch.setattr(bisection, "PRECISION", 0.5)
    monkeypatch.setattr(fitting, "SMALLEST_BATCH", BATCH)
    task = fitting.make(
        Settings(contenders=["torch:stock", "jax"], batch_size=BATCH, device="cpu", out=tmp_path), memory=MEMORY
    )
    found = fitting.run(task, lambda *_: None)
    for each, contender in zip(found, fit_result.build(task, found, []).contenders, strict=True):
        assert (contender.status, contender.reason, contender.stopped_by) == ("ok", None, "memory")
        largest, smallest = contender.largest_batch, contender.smallest_memory_bytes
        assert largest is not None
        assert smallest is not None
        assert largest > BATCH
        assert smallest < MEMORY * MEBIBYTE
        # A repetition needs a few bytes more or less. So far from the edge, it decides alike.
        assert each.tester.fits(largest // 2, MEMORY * MEBIBYTE)
        assert not each.tester.fits(3 * largest, MEMORY * MEBIBYTE)
        assert each.tester.fits(BATCH, 2 * smallest)
        assert not each.tester.fits(BATCH, smallest // 3)
