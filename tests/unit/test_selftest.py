"""The self-test: its own proofs must be able to fail."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from compare.base import statistics
from compare.base.interface import Refused
from compare.base.statistics import Ratio
from compare.execution import round_validity, simulation
from compare.studies import selftest
from tests.fakebackend import plans
from tests.unit import programs


def held(proofs: list[selftest.Proof]) -> dict[str, bool | None]:
    return {proof.name: proof.held for proof in proofs}


def test_the_statistics_hold() -> None:
    assert set(held(list(selftest.prove_statistics(500))).values()) == {True}


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_intervals_of_the_wrong_width_are_found(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real = statistics.estimate_paired_ratio

    def changed(*arguments: Any) -> Ratio:
        ratio = real(*arguments)
        half = factor * (ratio.high - ratio.low) / 2
        return Ratio(ratio.estimate, ratio.estimate - half, ratio.estimate + half, ratio.confidence)

    monkeypatch.setattr(simulation.statistics, "estimate_paired_ratio", changed)
    assert False in held(list(selftest.prove_statistics(200))).values()


def test_an_order_that_does_not_alternate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "make_palindrome", lambda contenders, repeats: [0] * 6 + [1] * 6)
    monkeypatch.setattr(simulation, "order_contenders", lambda contenders, number: contenders)
    assert (
        held(list(selftest.prove_statistics(200)))["A/A on a machine that slows down by 5 %: significant at 5 %"]
        is False
    )


def test_voiding_holds() -> None:
    assert set(held(list(selftest.prove_voiding())).values()) == {True}


@pytest.mark.parametrize(
    "voids",
    [lambda rounds, telemetry, device: {}, lambda rounds, telemetry, device: dict.fromkeys(range(5), "")],
    ids=["none", "all"],
)
def test_voiding_too_little_or_too_much_is_found(voids: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_validity, "find_void_rounds", voids)
    assert set(held(list(selftest.prove_voiding())).values()) == {False}


@pytest.mark.parametrize("name", ["tensorflow", "torch:tuned"])
def test_a_backend_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=f"^unknown backend '{name}'; allowed: torch, jax$"):
        selftest.run([name], "cpu", lambda *step: None)


def proofs_of(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, **script: Any) -> dict[str, bool | None]:
    plans.register(monkeypatch, tmp_path, {name: script})
    monkeypatch.setattr(selftest, "TRIALS", 10)
    monkeypatch.setattr(selftest, "prove_statistics", lambda: ())
    found = selftest.run([name], "cpu", lambda *step: None)
    return {proof.name: proof.held for proof in found if name in proof.name}


def test_a_delay_and_ballast_are_measured(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proofs_of("fake", tmp_path, monkeypatch) == {
        "fake on cpu: 50 ms more of delay of the host": True,
        "fake on cpu: synchronisation left out": None,
        "fake on cpu: 1 GiB of ballast in live peak": False,  # a figure that the fake backend has made up
        "fake on cpu: 1 GiB of ballast in process": True,
    }


def test_a_clock_that_runs_too_fast_is_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = proofs_of("fake", tmp_path, monkeypatch, fault="fast-clock")
    assert found["fake on cpu: 50 ms more of delay of the host"] is False


@pytest.mark.parametrize("fault", ["exit", "oom"])
def test_a_backend_that_fails_is_exit_code_3(
    fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "prove_statistics", lambda: ())
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        plans.register(monkeypatch, tmp_path / "logs", {"fake": {"fault": fault, "at": "open"}})
        code, out, _ = program.run("selftest", "fake", "--device", "cpu", "--json")
    proofs = json.loads(out)
    assert code == 3
    assert [proof["name"] for proof in proofs if proof["failed"]] == ["fake on cpu: time"]
    assert not proofs[-1]["held"]


def test_a_proof_that_fails_with_a_backend_that_works_is_exit_code_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = selftest.Proof("A/A", "2,000 of 2,000 runs", "at most 180", held=False)
    monkeypatch.setattr(selftest, "run", lambda *_: [wrong])
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        assert program.run("selftest", "fake", "--device", "cpu")[0] == 1


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ((True, True), "all of 2 proofs held"),
        ((True, None), "1 of 2 proofs held, 1 not possible here"),
        ((False, None), "1 of 2 proofs failed; if the machine had other work, run it again"),
    ],
)
def test_what_is_not_possible_here_is_not_counted_as_held(held: tuple[bool | None, ...], told: str) -> None:
    console = Console(file=io.StringIO())
    selftest.render([selftest.Proof("A/A", "", "", held=each) for each in held], console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().rstrip().endswith(f"\n{told}")


def test_a_backend_that_fails_is_a_proof_that_fails(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proofs_of("fake", tmp_path, monkeypatch, fault="raise", at="open") == {"fake on cpu: time": False}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_ballast_is_measured_in_a_real_backend(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "prove_statistics", lambda: ())
    monkeypatch.setattr(selftest, "_BLOCKS", 1)
    found = {proof.name: proof for proof in selftest.run([backend], "cpu", lambda *step: None)}
    assert found[f"{backend} on cpu: 1 GiB of ballast in process"].held
    # How exactly a delay is read depends on what else runs here.
    assert f"{backend} on cpu: 50 ms more of delay of the host" in found
