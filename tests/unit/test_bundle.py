"""Bundles: the same bytes each time, readable by anybody, and every change of them found."""

import csv
import hashlib
import io
import json
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compare import __version__
from compare.base.interface import Refused
from compare.machine import environment
from compare.reproduce import archive, authorship, bundle, verification
from compare.results import model, result_file, verdicts
from tests.unit.mutations import H200, consistent, text

GOOD = bundle.make(text(consistent()))
MEMBERS = archive.unpack(GOOD, bundle.MEMBERS)


def packed(changes: Mapping[str, bytes | None], resummed: bool = True) -> bytes:
    """Return the bundle with members changed or left out, with a new manifest if `resummed`."""
    kept = {name: data for name, data in {**MEMBERS, **changes}.items() if data is not None}
    if resummed and bundle.SUMS not in changes:
        kept[bundle.SUMS] = bundle.write_sums({name: data for name, data in kept.items() if name != bundle.SUMS})
    return archive.pack(kept)


def failed(data: bytes) -> dict[str, tuple[str, ...]]:
    _, checks = verification.verify(data)
    return {check.question: check.problems for check in checks if check.problems}


def tampered(**changes: Any) -> bytes:
    return text(consistent() | changes)


HASHES, FIGURES = "every hash holds", "every time, verdict and gate comes again from the raw samples"
REASONS, REPORT = "every reason comes again from the raw samples, word for word", "report.txt follows from the result"

HERE, OTHER = ({"commit": digit * 40, "dirty": False} for digit in "ab")


@pytest.fixture(autouse=True)
def this_samestep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this samestep be of a commit, whatever the checkout."""
    monkeypatch.setattr(authorship, "describe_this", lambda: authorship.read_writer(__version__, HERE))


def about(git: Any = HERE, version: str = __version__) -> dict[str, bytes]:
    return {"bundle.json": json.dumps({"format": 1, "samestep": version, "git": git}).encode()}


def unchecked(data: bytes) -> dict[str, tuple[str, ...]]:
    _, checks = verification.verify(data)
    return {check.question: check.unchecked for check in checks if check.unchecked}


@pytest.mark.parametrize("path", H200, ids=lambda path: path.parent.name)
def test_published_results_are_packed_and_verified(path: Path) -> None:
    made = bundle.make(path.read_bytes())
    assert made == bundle.make(path.read_bytes())
    result, checks = verification.verify(made)
    assert result == result_file.read(path)
    assert [check.held for check in checks] == [True] * 7


def test_a_bundle_tells_which_samestep_packed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for git in (None, HERE, OTHER | {"dirty": True}):
        monkeypatch.setattr(environment, "describe_checkout", lambda git=git: git)
        made = archive.unpack(bundle.make(text(consistent())), bundle.MEMBERS)["bundle.json"]
        assert json.loads(made) == {"format": 1, "samestep": __version__, "git": git}
        assert bundle.read_packer(made) == authorship.read_writer(__version__, git)


def test_the_members_are_what_they_say() -> None:
    assert MEMBERS["result.json"] == text(consistent())
    rows = list(csv.DictReader(io.StringIO(MEMBERS["samples.csv"].decode())))
    assert len(rows) == 2 * 10 * 6
    samples = {each["name"]: each["step_seconds"]["samples"] for each in consistent()["contenders"]}
    for row in rows:
        expected = samples[row["contender"]][int(row["round"]) - 1][int(row["block"]) - 1]
        assert float(row["seconds_per_step"]) == expected
        assert row["void"] == str(int(row["round"] == "10"))
    report = MEMBERS["report.txt"].decode()
    assert "jax is 1.4" in report
    assert "round 10 is void" in report
    assert max(map(len, report.splitlines())) <= 100


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="coreutils are not installed")
def test_anybody_can_check_the_sums(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(GOOD)) as made:
        made.extractall(tmp_path)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.count(": OK\n")) == (0, 5)


def test_the_terminal_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "20", "TERM": "dumb", "TTY_COMPATIBLE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert bundle.make(text(consistent())) == GOOD


def requirements(environment: dict[str, Any]) -> str:
    return bundle.write_requirements(model.from_json(consistent() | {"environment": environment}))


def test_versions_are_pinned_as_pip_reads_them_and_nothing_else_is_let_in() -> None:
    packages = {
        "torch": "2.13.0+cpu",
        "jax": "0.10.2",
        "triton": None,
        "evil\n--index-url http://x": "1",
        "name": "1\n-r /etc/passwd",
        "--flag": "1",
    }
    environment = {"python": "3.11\x1b[2J\nevil", "platform": "Linux", "packages": packages}
    lines = requirements(environment).splitlines()
    assert lines == ["# Python 3.11?[2J?evil on Linux", "jax==0.10.2", "torch==2.13.0+cpu"]
    assert requirements({"packages": [1]}) == "# Python None on None\n"


@pytest.mark.parametrize("name", sorted(MEMBERS.keys() - {"SHA256SUMS"}))
def test_a_member_that_was_touched_has_another_hash(name: str) -> None:
    touched = MEMBERS[name].rstrip(b"\n") + b" \n\n"
    if name == "result.json":
        touched = MEMBERS[name] + b" "
    problems = failed(packed({name: touched}, resummed=False))[HASHES]
    assert problems == (f"{name} does not have the digest in SHA256SUMS, but {hashlib.sha256(touched).hexdigest()}",)


def test_a_member_without_a_hash_is_found() -> None:
    sums = b"".join(line for line in MEMBERS["SHA256SUMS"].splitlines(keepends=True) if b"report" not in line)
    assert failed(packed({"SHA256SUMS": sums})) == {HASHES: ("report.txt has no digest in SHA256SUMS",)}


def test_a_forged_verdict_is_found_though_everything_was_made_anew() -> None:
    result = consistent()
    result["comparisons"][0]["verdict"] = "EQUIVALENT"
    found = failed(bundle.make(text(result)))
    assert found == {FIGURES: ("comparisons[0].verdict is 'EQUIVALENT', the raw samples give 'FASTER'",)}


def test_what_a_certificate_lacks_is_named() -> None:
    result = consistent()
    pair = result["agreement"]["pairs"][0]
    pair["tensors"] = [each for each in pair["tensors"] if each["name"] != "step2/loss"]
    assert failed(bundle.make(text(result))) == {
        FIGURES: ("agreement.pairs[0].tensors[step2/loss] is missing in a pair that passes",)
    }


@pytest.mark.parametrize("name", sorted(bundle.DERIVED))
def test_a_forged_table_is_found_though_its_hash_holds(name: str) -> None:
    forged = MEMBERS[name].replace(b"torch", b"torcH").replace(b"Python", b"python")
    problem = f"it differs from the one that samestep {__version__} (commit {'a' * 12}) writes for the result"
    assert failed(packed({name: forged, **about()})) == {f"{name} follows from the result": (problem,)}
    if name != "report.txt":  # samestep has no words of its own for it
        assert failed(packed({name: forged, **about(OTHER)})) == {f"{name} follows from the result": (problem,)}


WRITERS = {
    "another commit": (about(OTHER), f"samestep {__version__} (commit {'b' * 12}) wrote it"),
    "another version": (about(version="0.0.1"), f"samestep 0.0.1 (commit {'a' * 12}) wrote it"),
    "no checkout": (about(None), f"samestep {__version__} wrote it"),
    "changes of its own": (about(HERE | {"dirty": True}), f"(commit {'a' * 12} with changes) wrote it"),
    "an unknown state": (about({"commit": "a" * 40}), f"(commit {'a' * 12} with changes) wrote it"),
    "nonsense": (about(["\x1b[2J"]), "(commit unknown) wrote it"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_words_of_another_samestep_are_told_from_forged_ones_and_not_checked(kind: str) -> None:
    changes, who = WRITERS[kind]
    assert MEMBERS["report.txt"].count(b" times as fast as ") == 1
    reworded = packed(
        {"report.txt": MEMBERS["report.txt"].replace(b" times as fast as ", b"-fold faster than "), **changes}
    )
    assert failed(reworded) == {}
    (said,) = unchecked(reworded)[REPORT]
    assert "Its other words were not compared: " in said
    assert who in said
    assert f"this is samestep {__version__} (commit {'a' * 12})" in said
    assert unchecked(packed(changes)) == {}  # the same words need no excuse


def test_of_two_checkouts_with_changes_nobody_knows_whether_they_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = HERE | {"dirty": True}
    monkeypatch.setattr(authorship, "describe_this", lambda: authorship.read_writer(__version__, changed))
    reworded = MEMBERS["report.txt"].replace(b" times as fast as ", b"-fold faster than ")
    assert unchecked(packed({"report.txt": reworded, **about(changed)})).keys() == {REPORT}


@pytest.mark.parametrize(
    ("true", "forged", "place"),
    [
        (b"FASTER", b"SLOWER", "'SLOWER' in line"),
        (b"jax is 1.4", b"jax is 9.4", "'9.4"),
        (b"semantic: 1e-14", b"semantic: 1e+14", "'1e+14' in line"),
        (b"limit 1e-10), pass", b"limit 1e-10), fail", "'fail' in line"),
        (b"(ratio 0.6", b"(ratio -0.6", "'-0.6"),
        (b"jax is 1.4", b"torch is 1.4", "'1.4"),
        (b": FASTER", b"", "no 'FASTER' as in line"),
        (b"torch", b"torch\x1b[2J", "control characters"),
        (b"torch", b"torch\xff", "bytes outside UTF-8"),
    ],
)
def test_a_forged_figure_is_found_whoever_is_said_to_have_written_it(true: bytes, forged: bytes, place: str) -> None:
    assert true in MEMBERS["report.txt"]
    report = MEMBERS["report.txt"].replace(true, forged, 1)
    for changes in (about(), about(OTHER)):
        assert failed(packed({"report.txt": report, **changes})).keys() == {REPORT}
    assert place in failed(packed({"report.txt": report, **about(OTHER)}))[REPORT][0]


def test_figures_that_changed_places_are_found_and_lines_of_a_later_samestep_not_missed() -> None:
    lines = MEMBERS["report.txt"].splitlines(keepends=True)
    images = next(index for index, line in enumerate(lines) if line.startswith(b"images/s"))
    label, *two = lines[images].split()
    swapped = [*lines[:images], b" ".join([label, *reversed(two), b"\n"]), *lines[images + 1 :]]
    (problem,) = failed(packed({"report.txt": b"".join(swapped), **about(OTHER)}))[REPORT]
    assert "Verify it with that samestep" in problem
    older = packed({"report.txt": b"".join(lines[:images] + lines[images + 1 :]), **about(OTHER)})
    assert (failed(older), unchecked(older).keys()) == ({}, {REPORT})


@pytest.mark.parametrize(
    ("git", "reason", "fails"),
    [
        (HERE, "others kept 0.40 cores busy", True),
        (OTHER, "others kept 0.40 cores busy", False),
        (OTHER, "others kept 0.41 cores busy", True),
    ],
)
def test_a_reason_may_be_worded_otherwise_by_another_samestep(git: Any, reason: str, fails: bool) -> None:
    result = consistent()
    result["environment"] |= {"samestep": __version__, "git": git}
    result["voided"][0]["reason"] = reason
    made = bundle.make(text(model.to_json(verdicts.complete_result(model.from_json(result)))))
    told = (failed if fails else unchecked)(made)
    assert told.keys() == {REASONS}
    assert told[REASONS][0].startswith(f"voided[0].reason is {reason!r}, the raw samples give 'other programs kept")
    assert (failed(made) == {}) is not fails


REFUSALS: dict[str, tuple[bytes, str]] = {
    "no result": (packed({"result.json": None}), r"lacks result\.json"),
    "no sums": (packed({"SHA256SUMS": None}), "lacks SHA256SUMS"),
    "newer format": (
        packed({"bundle.json": b'{"format": 2, "samestep": "9.0"}'}),
        r"newer samestep \(format 2; this one",
    ),
    "format true": (
        packed({"bundle.json": b'{"format": true, "samestep": "9.0"}'}),
        "allowed: a format and the version",
    ),
    "no object": (packed({"bundle.json": b"[]"}), "allowed: a format and the version"),
    "escape in the version": (packed({"bundle.json": b'{"format": 1, "samestep": "\\u001b[2J"}'}), r"\\x1b\[2J"),
    "long about": (packed({"bundle.json": b" " * 5000}), r"bundle\.json has 5,000 bytes; allowed: at most 4,096"),
    "long sums": (packed({"SHA256SUMS": b"\n" * 5000}), "SHA256SUMS has 5,000 bytes"),
    "sums of another file": (packed({"SHA256SUMS": b"0" * 64 + b"  ../etc\n"}), "SHA256SUMS, line 1, is"),
    "sums twice": (packed({"SHA256SUMS": MEMBERS["SHA256SUMS"] * 2}), "SHA256SUMS, line 6, is"),
    "sums of themselves": (packed({"SHA256SUMS": b"0" * 64 + b"  SHA256SUMS\n"}), "SHA256SUMS, line 1, is"),
    "result of a newer samestep": (
        packed({"result.json": tampered(schema_version=2)}),
        r"result\.json was written by a newer",
    ),
    "result that breaks the schema": (packed({"result.json": tampered(spec=[])}), r"result\.json spec is \[\]"),
    "NaN": (packed({"result.json": tampered(id=float("nan"))}), r"result\.json holds the literal NaN"),
    "truncated result": (
        packed({"result.json": MEMBERS["result.json"][:-9]}),
        r"result\.json is not complete, valid JSON",
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_is_no_bundle_is_refused(kind: str) -> None:
    data, message = REFUSALS[kind]
    with pytest.raises(Refused, match=message):
        verification.verify(data)


def test_what_is_no_result_is_not_packed() -> None:
    with pytest.raises(Refused, match="spec is"):
        bundle.make(tampered(spec=[]))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(1, 255)), min_size=1, max_size=3),
    st.sampled_from((0, 0, 1, 30)),
)
def test_a_damaged_bundle_fails_is_refused_or_holds_what_it_held(flips: list[tuple[int, int]], cut: int) -> None:
    damaged = bytearray(GOOD)
    for place, mask in flips:
        damaged[place] ^= mask
    del damaged[len(damaged) - cut :]
    try:
        result, checks = verification.verify(bytes(damaged))
    except Refused:
        return
    assert not all(check.held for check in checks) or model.to_json(result) == consistent()


def test_a_table_that_would_be_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "SIZE_LIMIT", 1000)
    with pytest.raises(Refused, match=r"samples\.csv would have more than 1,000 bytes"):
        bundle.make(text(consistent()))
