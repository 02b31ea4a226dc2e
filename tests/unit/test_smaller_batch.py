"""A contender that runs out of memory is told which batch would have fitted."""

from pathlib import Path

import pytest

from compare.execution import batch_trial
from tests.unit.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("most", "accumulate", "advice"),
    [(20, 1, "batch 16 trains"), (1, 1, "not even batch 2 trains"), (40, 3, "batch 30 trains")],
)
def test_the_batch_that_trains_stands_in_the_reason(stage: Stage, most: int, accumulate: int, advice: str) -> None:
    size = 64 // accumulate * accumulate
    script = {"other": {"most_images": most}}
    result = stage.run(script=script, batch_size=size, accumulate=accumulate, agreement=False)
    good, bad = result["contenders"]
    assert (good["status"], bad["status"]) == ("ok", "oom")
    assert bad["reason"].startswith("training: warm_up: RuntimeError: out of fake memory")
    assert bad["reason"].endswith(f"; {advice}")


def test_the_batch_that_trains_is_one_of_equal_parts_on_every_device(stage: Stage) -> None:
    script = {"other": {"most_images": 40}}
    result = stage.run("fake:stock+ddp", "other:stock+ddp", script=script, batch_size=63, devices=3, agreement=False)
    assert result["contenders"][1]["reason"].endswith("; batch 30 trains")


def test_of_the_least_batch_nothing_is_said_that_was_not_tried(stage: Stage) -> None:
    script = {"other": {"fault": "oom", "at": "memory"}}
    bad = stage.run(script=script, batch_size=2, agreement=False)["contenders"][1]
    assert bad["status"] == "oom"
    assert "batch" not in bad["reason"]
    assert {process for name, process, *_ in stage.calls("open") if name == "other"} <= {"0", "1"}


def test_only_batches_down_to_the_one_that_trains_are_tried(stage: Stage) -> None:
    stage.run(script={"other": {"most_images": 20}}, agreement=False, cold_compile=True)
    processes = {process for name, process, *_ in stage.calls("open") if name == "other"}
    assert processes == {"0", "1", "2"}  # of training, then 32 and 16 images
    assert [phase for phase, *_ in stage.progress if "smaller" in phase] == ["smaller batches for other"]


def test_a_certificate_that_lacks_memory_has_the_advice_too(stage: Stage) -> None:
    bad = stage.agree(script={"other": {"most_images": 20}})["contenders"][1]
    assert bad["reason"].endswith("; batch 16 trains")


def test_an_interrupted_search_leaves_the_certificate(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> str:
        raise SystemExit(143)

    monkeypatch.setattr(batch_trial, "find_smaller_batch", interrupted)
    good, bad = stage.agree(script={"other": {"most_images": 20}})["contenders"]
    assert (good["status"], bad["status"]) == ("ok", "oom")


def test_of_one_that_failed_otherwise_no_batch_is_searched_for(stage: Stage) -> None:
    script = {"other": {"fault": "raise", "at": "open", "process": 0}}
    bad = stage.run(script=script, agreement=False)["contenders"][1]
    assert (bad["status"], bad["reason"]) == ("crash", "training: open: RuntimeError: scripted failure")
    assert not [phase for phase, *_ in stage.progress if "smaller" in phase]


def test_nothing_is_advised_where_a_try_fails_for_anything_else(stage: Stage) -> None:
    script = {"other": {"fault": "oom", "at": "open", "process": 0, "most_images": 1, "when_full": "exit"}}
    bad = stage.run(script=script, agreement=False, cold_compile=True)["contenders"][1]
    assert (bad["status"], bad["reason"]) == ("oom", "training: open: MemoryError: scripted: 8 GiB wanted")
