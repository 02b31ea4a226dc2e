"""`samestep diff`, `bundle` and `verify` on the command line: exit codes, what they print and what they leave."""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from compare.execution import round_validity
from compare.reproduce import archive, bundle, collection
from compare.results import result_file
from tests.unit import programs
from tests.unit.mutations import consistent, text
from tests.unit.programs import Program
from tests.unit.result_factory import complete, make_comparison

COLLECTION = {"result-001.zip", "result-002.zip", "bundle.json", "SHA256SUMS"}


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    limit = round_validity.FOREIGN_CORES
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        monkeypatch.setattr(round_validity, "FOREIGN_CORES", limit)  # nothing is run here: the stored load counts
        (program.folder / "old.json").write_bytes(text(consistent()))
        (program.folder / "slow.json").write_bytes(text(slower(1.05)))
        yield program


def slower(factor: float) -> dict[str, object]:
    result = consistent()
    step = result["contenders"][1]["step_seconds"]
    step["samples"] = [[factor * seconds for seconds in blocks] for blocks in step["samples"]]
    return complete(result)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 1, "regression above 3 %: jax step time"),
        (["--fail-above", "3%"], 1, "regression above 3 %: jax step time"),
        (["--fail-above", "0.03"], 1, "regression above 3 %: jax step time"),
        (["--fail-above", "6%"], 0, "no regression above 6 %"),
    ],
)
def test_a_regression_is_exit_code_1(program: Program, options: list[str], code: int, said: str) -> None:
    returned, out, error = program.run("diff", "old.json", "slow.json", *options)
    assert (returned, error) == (code, "")
    assert out.endswith(f"{said}\n")
    assert "+5.0 %" in out


@pytest.mark.parametrize(("undecided", "code"), [("pass", 0), ("fail", 4), ("skip", 0)])
def test_an_undecided_change_passes_fails_or_is_left_out(program: Program, undecided: str, code: int) -> None:
    fewer = consistent()
    fewer["contenders"] = fewer["contenders"][:1]
    fewer["comparisons"] = []
    (program.folder / "fewer.json").write_bytes(text(complete(fewer)))
    returned, out, _ = program.run("diff", "old.json", "fewer.json", "--anyway", "--undecided", undecided)
    assert returned == code
    assert ("INCONCLUSIVE" in out) is (undecided != "skip")


def test_an_improvement_is_shown_and_passes(program: Program) -> None:
    code, out, _ = program.run("diff", "slow.json", "old.json")
    assert code == 0
    assert "IMPROVEMENT" in out
    assert out.endswith("no regression above 3 %\n")


def test_the_same_in_json(program: Program) -> None:
    code, out, error = program.run("diff", "old.json", "slow.json", "--json")
    told = json.loads(out)
    assert (code, error, told["regression"], told["fail_above"], told["unlike"]) == (1, "", True, 0.03, [])
    assert told["old"]["created"] == consistent()["created"]
    (change,) = [each for each in told["changes"] if each["outcome"] == "REGRESSION"]
    assert (change["contender"], change["figure"]) == ("jax", "step time")
    assert change["ratio"]["low"] < 1.05 < change["ratio"]["high"]


def test_other_work_is_refused_unless_asked_for(program: Program) -> None:
    other = consistent()
    other["spec"]["precision"] = "bfloat16"
    (program.folder / "other.json").write_bytes(text(other))
    code, out, error = program.run("diff", "old.json", "other.json")
    assert (code, out) == (2, "")
    assert "not of the same work: precision is float32 against bfloat16; allowed with --anyway" in error
    code, out, _ = program.run("diff", "old.json", "other.json", "--anyway")
    assert code == 0
    assert "not the same work: precision is float32 against bfloat16" in out


@pytest.mark.parametrize("command", [["diff", "old.json"], ["bundle", "-o", "x.zip"], ["verify"], ["reproduce"]])
def test_a_hostile_file_is_refused_in_one_line_without_control_codes(program: Program, command: list[str]) -> None:
    for number, hostile in enumerate(
        (b"\x1b[2J", b'{"\\u001b[2J": NaN}', b'{"schema_version": 9}', b"PK\x03\x04", b"")
    ):
        (program.folder / "bad").write_bytes(hostile)
        before = program.files()
        code, out, error = program.run(*command, "bad")
        assert (code, out) == (2, ""), number
        assert error.startswith("samestep: bad: ")
        assert error.count("\n") == 1
        assert error.replace("\n", "").isprintable()
        assert program.files() == before


@pytest.mark.parametrize("command", ["report", "verify", "reproduce"])
def test_another_file_with_the_name_of_a_bundle_is_no_zip_file(program: Program, command: str) -> None:
    (program.folder / "notes.zip").write_text("my notes")
    code, out, error = program.run(command, "notes.zip")
    assert (code, out) == (2, "")
    assert "notes.zip: is no zip file" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "allowed: diff OLD NEW, or diff --against REV"),
        (["old.json"], "allowed: diff OLD NEW, or diff --against REV"),
        (["old.json", "slow.json", "--rounds", "5"], "--rounds needs --against"),
        (["--against", "HEAD"], "allowed: diff --against REV --torch FILE.py:NAME --input HxWxC --classes N"),
    ],
)
def test_diff_says_what_it_takes(program: Program, arguments: list[str], said: str) -> None:
    code, out, error = program.run("diff", *arguments)
    assert (code, out) == (2, "")
    assert said in error


def test_a_key_that_would_clear_the_screen_is_shown_as_text(program: Program) -> None:
    hostile = consistent()
    hostile["environment"]["\x1b[2J\x07"] = 2**70
    (program.folder / "bad").write_bytes(text(hostile))
    code, _, error = program.run("diff", "old.json", "bad")
    assert (code, error) == (
        2,
        "samestep: bad: environment.?[2J? is an integer of 71 bits; allowed: 64-bit integers\n",
    )


@pytest.mark.parametrize("options", [["--fail-above", "three"], ["--fail-above", "3"], ["--fail-above", "-3%"]])
def test_what_is_no_threshold_is_refused(program: Program, options: list[str]) -> None:
    code, out, error = program.run("diff", "old.json", "slow.json", *options)
    assert (code, out) == (2, "")
    assert "allowed: 3%, or a part below 1, as 0.03" in error


def test_a_bundle_is_packed_and_verified(program: Program) -> None:
    code, out, error = program.run("bundle", "old.json", "-o", "x.zip")
    assert (code, error) == (0, "")
    assert out.startswith("bundle: x.zip (")
    first = (program.folder / "x.zip").read_bytes()
    program.run("bundle", "old.json", "--out", "x.zip")
    assert (program.folder / "x.zip").read_bytes() == first
    code, out, error = program.run("verify", "x.zip")
    assert (code, error) == (0, "")
    assert out.count("pass  ") == 7
    assert out.endswith("all of 7 checks held\n")


def test_a_result_may_be_named_by_its_folder(program: Program) -> None:
    for name in ("old", "slow"):
        (program.folder / name).mkdir()
        (program.folder / f"{name}.json").rename(program.folder / name / "result.json")
    assert program.run("diff", "old", "slow")[0] == 1
    assert program.run("diff", "slow", "old")[0] == 0
    assert program.run("bundle", "old", "-o", "old.zip")[0] == 0
    assert program.run("verify", "old.zip")[0] == 0
    assert program.run("bundle", "old", "-o", "old/result.json")[0] == 2
    (program.folder / "empty").mkdir()
    code, _, error = program.run("diff", "old", "empty")
    assert (code, error) == (
        2,
        "samestep: empty/result.json: cannot be read: No such file or directory; "
        "allowed: a result.json, its folder, or a bundle\n",
    )


@pytest.mark.parametrize("command", [("report",), ("verify",), ("bundle", "-o", "x.zip"), ("diff", "old.json")])
def test_a_folder_of_results_names_the_newest_one(program: Program, command: tuple[str, ...]) -> None:
    for name, seconds in (("first", 2_000_000_000), ("second", 1_000_000_000)):
        (program.folder / "runs" / name).mkdir(parents=True)
        file = program.folder / "runs" / name / "result.json"
        file.write_bytes((program.folder / "old.json").read_bytes())
        os.utime(file, (seconds, seconds))
    code, out, error = program.run(command[0], *command[1:], "runs")
    assert (code, out) == (2, "")
    assert error == "samestep: runs holds no result.json, but 2 of its folders do; the newest is runs/first\n"
    (program.folder / "single" / "only").mkdir(parents=True)
    (program.folder / "single" / "only" / "result.json").touch()
    _, _, error = program.run("report", "single")
    assert error == "samestep: single holds no result.json, but its folder single/only does\n"
    (program.folder / "ladder").mkdir()
    (program.folder / "runs").rename(program.folder / "ladder" / "rungs")
    _, _, error = program.run("report", "ladder")
    assert "ladder holds no result.json, but 2 of its folders do; the newest is ladder/rungs/first" in error
    (program.folder / "ladder" / "all.zip").touch()
    _, _, error = program.run("report", "ladder")
    assert "ladder holds no result.json, but a bundle: ladder/all.zip" in error


def test_a_bundle_stands_wherever_a_result_does(program: Program) -> None:
    assert program.run("bundle", "slow.json", "-o", "slow.zip")[0] == 0
    assert program.run("diff", "old.json", "slow.zip") == program.run("diff", "old.json", "slow.json")
    code, out, error = program.run("report", "slow.zip")
    assert (code, error) == (0, "")
    assert out == program.run("report", "slow.json")[1]


def test_a_result_without_a_bundle_is_verified(program: Program) -> None:
    (program.folder / "old").mkdir()
    (program.folder / "old" / "result.json").write_bytes(text(consistent()))
    for name in ("old.json", "old"):
        code, out, error = program.run("verify", name)
        assert (code, error) == (0, "")
        assert out.endswith("all of 3 checks held\n")
    (program.folder / "old.json").write_bytes(text(consistent() | {"comparisons": [make_comparison()]}))
    code, out, _ = program.run("verify", "old.json")
    assert code == 1
    assert "comparisons[0].rounds is 10, the raw samples give 9" in " ".join(out.split())


def test_a_bundle_with_another_result_than_its_digest_is_not_reported_or_compared(program: Program) -> None:
    members = archive.unpack(bundle.make(text(consistent())), bundle.MEMBERS)
    members["result.json"] = text(slower(1.05))
    (program.folder / "x.zip").write_bytes(archive.pack(members))
    for arguments in (("report", "x.zip"), ("diff", "old.json", "x.zip"), ("reproduce", "x.zip")):
        code, out, error = program.run(*arguments)
        assert (code, out) == (2, "")
        assert error == "samestep: x.zip: result.json does not have the digest in SHA256SUMS; allowed: a whole bundle\n"


def test_a_forged_bundle_is_exit_code_1_with_the_place(program: Program) -> None:
    forged = consistent() | {"comparisons": [make_comparison()]}
    result_file.validate(forged)
    (program.folder / "x.zip").write_bytes(bundle.make(text(forged)))
    code, out, error = program.run("verify", "x.zip")
    assert (code, error) == (1, "")
    assert "FAIL  every time, verdict and gate comes again from the raw samples" in out
    assert "comparisons[0].rounds is 10, the raw samples give 9" in " ".join(out.split())
    assert out.endswith("1 of 7 checks failed\n")
    code, out, _ = program.run("verify", "x.zip", "--json")
    told = json.loads(out)
    assert code == 1
    assert [check["held"] for check in told["checks"]] == [True, True, False, True, True, True, True]


def test_words_of_another_samestep_are_said_to_be_unchecked_and_fail_nothing(program: Program) -> None:
    members = archive.unpack(bundle.make(text(consistent())), bundle.MEMBERS)
    members |= {"bundle.json": b'{"format": 1, "samestep": "0.0.1"}'}
    members["report.txt"] = members["report.txt"].replace(b"times as fast as", b"times the speed of")
    members["SHA256SUMS"] = bundle.write_sums({name: data for name, data in members.items() if name != bundle.SUMS})
    (program.folder / "x.zip").write_bytes(archive.pack(members))
    code, out, error = program.run("verify", "x.zip")
    assert (code, error) == (0, "")
    assert "OPEN  report.txt follows from the result" in out
    assert "Its other words were not compared: samestep 0.0.1 (commit " in " ".join(out.split())
    assert out.endswith("\nnone of 7 checks failed, 1 is OPEN (made in part, see the lines below it)\n")
    code, out, _ = program.run("verify", "x.zip", "--json")
    report = next(check for check in json.loads(out)["checks"] if check["question"].startswith("report.txt"))
    assert (code, report["held"], report["problems"], len(report["unchecked"])) == (0, False, [], 1)


@pytest.mark.parametrize(
    "arguments",
    [("bundle", "old.json", "-o", "x.zip"), ("diff", "old.json", "slow.json"), ("diff", "slow.json", "old.json")],
)
def test_a_result_that_contradicts_itself_is_not_packed_or_compared(program: Program, arguments: tuple[str]) -> None:
    (program.folder / "old.json").write_bytes(text(consistent() | {"comparisons": [make_comparison()]}))
    code, out, error = program.run(*arguments)
    assert (code, out) == (2, "")
    assert error == "samestep: old.json: comparisons[0].rounds is 10; allowed by samples and voided: 9\n"
    assert not (program.folder / "x.zip").exists()


def test_a_bundle_is_not_written_over_its_own_result(program: Program) -> None:
    before = (program.folder / "old.json").read_bytes()
    code, out, error = program.run("bundle", "old.json", "-o", "./old.json")
    assert (code, out) == (2, "")
    assert "would be written over the result" in error
    assert (program.folder / "old.json").read_bytes() == before


def test_where_a_bundle_cannot_be_written_is_named(program: Program) -> None:
    for folder in ("old.json", "x" * 300):
        code, out, error = program.run("bundle", "old.json", "-o", f"{folder}/x.zip")
        assert (code, out) == (2, "")
        assert f"--out {folder}/x.zip: {folder} cannot be made: " in error
    code, _, error = program.run("bundle", "old.json", "-o", "x" * 300)
    assert (code, error.count("\n")) == (2, 1)
    assert "File name too long" in error


@pytest.mark.parametrize("command", ["bundle", "compare", "agree", "reproduce", "scale", "fit"])
def test_no_name_is_not_the_current_folder(program: Program, command: str) -> None:
    before = program.files()
    code, out, error = program.run(command, *(["old.json"] if command in ("bundle", "reproduce") else []), "--out", "")
    assert (code, out) == (2, "")
    assert error == "samestep: '' is no name of a file or folder; allowed: a path, for example ./x\n"
    assert program.files() == before


def test_several_results_go_into_one_bundle_that_is_checked_and_reported(program: Program) -> None:
    code, out, error = program.run("bundle", "old.json", "slow.json", "-o", "new/folder/all.zip")
    assert (code, error) == (0, "")
    assert out.startswith("bundle: new/folder/all.zip (")
    code, out, error = program.run("verify", "new/folder/all.zip")
    assert (code, error) == (0, "")
    assert out.count("report.txt follows from the result") == 2
    code, out, _ = program.run("verify", "new/folder/all.zip", "--json")
    assert [len(each["checks"]) for each in json.loads(out)] == [7, 7]
    assert program.run("report", "new/folder/all.zip") == program.run("report", "old.json", "slow.json")
    code, _, error = program.run("diff", "new/folder/all.zip", "old.json")
    assert code == 2
    assert "holds 2 results; allowed: one" in error
    code, _, error = program.run("bundle", "old.json", "old.json", "-o", "x.zip")
    assert (code, "old.json: named twice; allowed: each result once" in error) == (2, True)


@pytest.mark.parametrize("member", ["result-002.zip", "bundle.json"])
def test_a_changed_member_of_a_bundle_of_several_results_is_noticed(program: Program, member: str) -> None:
    both = [(program.folder / name).read_bytes() for name in ("old.json", "slow.json")]
    members = archive.unpack(collection.make(both), {member, *COLLECTION}, total_limit=2**30)
    members[member] = members["result-001.zip"] if member.endswith(".zip") else members[member] + b" "
    (program.folder / "x.zip").write_bytes(archive.pack(members))
    for command in ("verify", "report"):
        code, out, error = program.run(command, "x.zip")
        assert (code, out) == (2, "")
        assert f"x.zip: {member} does not have the digest in SHA256SUMS" in error
    del members[member]
    (program.folder / "x.zip").write_bytes(archive.pack(members))
    assert "x.zip: lacks " in program.run("verify", "x.zip")[2]


def test_a_bundle_needs_a_name(program: Program) -> None:
    code, _, error = program.run("bundle", "old.json")
    assert code == 2
    assert "--out" in error
