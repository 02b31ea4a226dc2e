"""`samestep scale` with both frameworks on parts of a CPU: they train, agree on each number, and are timed."""

import math
from pathlib import Path

import pytest

from compare.execution import round_validity
from compare.settings.options import Settings
from compare.studies import scaling, scaling_result


@pytest.mark.thorough
def test_both_frameworks_train_and_agree_on_one_and_on_two_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_validity, "FOREIGN_CORES", math.inf)  # what is timed does not matter, only that it is
    task = scaling.make(
        Settings(
            contenders=["torch:stock+ddp", "jax:stock+sharded"],
            out=tmp_path,
            device="cpu",
            rounds=2,
            epochs=1,
            batch_size=32,
        ),
        [1, 2],
    )
    result = scaling_result.build(task, scaling.run(task, [])[0], [])
    assert scaling_result.load(scaling_result.write(result, tmp_path)) == result
    for entry in result.scaling:
        assert (entry.status, entry.reason, entry.unproven, entry.agreement) == ("ok", None, None, "pass")
        assert entry.images_per_second
        assert entry.efficiency
        assert entry.efficiency.low <= entry.efficiency.estimate <= entry.efficiency.high
        assert set(entry.absent) == {"communication_seconds", "memory_per_device_bytes"}
