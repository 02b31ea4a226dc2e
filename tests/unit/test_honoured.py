"""What a plan refuses because a contender cannot have it there: here, what torch's update reads on the host."""

from pathlib import Path

import pytest

from compare import environment
from compare.interface import Refused
from tests.fakebackend import plans


@pytest.mark.parametrize(
    ("workload", "precision", "tuning", "reading"),
    [
        ("cifar-cnn", "float16", "graph-capture", "whether gradients overflow"),
        ("mobilenet-v2", "bfloat16", "compiled+graph-capture", "sgd's scheduled learning rate"),
        ("mobilenet-v2", "bfloat16", "tuned", None),
        ("convnext-tiny", "bfloat16", "graph-capture", None),
        ("cifar-cnn", "bfloat16", "graph-capture", None),
    ],
)
def test_a_captured_step_in_which_the_host_would_read_is_refused_before_it_starts(
    workload: str, precision: str, tuning: str, reading: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    texts, changes = (f"torch:{tuning}", "jax:stock"), {"workload": workload, "precision": precision, "device": "cuda"}
    if reading is None:
        assert plans.make(tmp_path / "out", texts, **changes).contenders
        return
    said = f"torch:{tuning}, {precision}: graph-capture needs fused-optimizer in torch, for without it the host reads "
    with pytest.raises(Refused, match=said.replace("+", r"\+") + reading + ".*allowed: with .fused-optimizer"):
        plans.make(tmp_path / "out", texts, **changes)
