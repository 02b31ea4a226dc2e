"""What a plan refuses because a contender cannot have it there: here, what torch's update reads on the host."""

from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.base.workloads import WORKLOADS
from compare.data import datasets
from compare.machine import environment
from tests.fakebackend import plans

MADE = datasets.make_empty("none")


def _not_yet(*_: Any, **__: Any) -> Any:
    pytest.fail("images are made for a plan that is refused without them")


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
    monkeypatch.setattr(datasets, "load", lambda *_, **__: MADE)  # thousands of photographs
    if reading is None:
        assert plans.make(tmp_path / "out", texts, **changes).dataset is MADE
        return
    monkeypatch.setattr(datasets, "load", _not_yet)
    said = (
        f"torch:{tuning}, {precision}: graph-capture needs fused-optimizer in torch, because without it the host reads "
    )
    with pytest.raises(Refused, match=said.replace("+", r"\+") + reading + ".*allowed: with .fused-optimizer"):
        plans.make(tmp_path / "out", texts, **changes)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("tuning", ["tuned", "ahead-of-time"])
def test_requests_of_every_workload_may_be_tuned(
    precision: str, tuning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    monkeypatch.setattr(datasets, "load", lambda *_, **__: MADE)
    changes = {"precision": precision, "device": "cuda", "task": "infer", "epochs": None}
    for workload in WORKLOADS:
        plans.make(tmp_path / "out", (f"torch:{tuning}", f"jax:{tuning}"), workload=workload, **changes)


def test_devices_that_cannot_share_a_batch_are_refused_before_images_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "load", _not_yet)
    with pytest.raises(Refused, match="--devices 3 is not allowed; allowed: a multiple of 3"):
        plans.make(tmp_path / "out", ("torch:stock+ddp", "jax:stock+sharded"), workload="resnet50", devices=3)
