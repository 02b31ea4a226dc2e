"""`samestep report` on the command line."""

import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from compare.results import result_file
from tests.unit import markup, programs, stored
from tests.unit.markup import empty_pictures as empty_pictures
from tests.unit.mutations import H200
from tests.unit.programs import Program

FASTER = str(stored.path("faster"))
FIGURES = [
    f"{name}.{kind}" for name in ("loss", "memory", "ratio", "steps", "telemetry") for kind in ("pdf", "png", "svg")
]


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


def _refused(program: Program, *arguments: str) -> str:
    before = {name: _content(program.folder / name) for name in program.files()}
    code, out, error = program.run("report", *arguments)
    assert (code, out) == (2, ""), error
    assert error.startswith("samestep: ")
    assert error.count("\n") == 1
    assert {name: _content(program.folder / name) for name in program.files()} == before
    return error


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def test_without_an_option_the_terminal_report_is_printed_again(program: Program) -> None:
    code, out, error = program.run("report", FASTER)
    assert (code, error) == (0, "")
    assert "jax is 1.61 times as fast as torch:stock (ratio 0.620," in " ".join(out.split())
    assert "step time (ms)" in out
    assert program.run("report", str(stored.path("faster").parent)) == (0, out, "")
    assert not program.files()


def test_of_a_certificate_the_gates_are_printed(program: Program) -> None:
    code, out, _ = program.run("report", str(stored.path("agree")))
    assert code == 0
    assert "trajectory: distance between the losses, over the one-ulp envelope" in out
    assert out.endswith("agreement in float32: pass\n")


def test_several_results_give_one_table_and_one_picture(program: Program) -> None:
    parts = (FASTER, str(stored.path("agree")))
    code, out, _ = program.run("report", *parts)
    assert code == 0
    assert "jax          1.192  0.620  0.616 to 0.625" in out
    assert "step time (ms)" not in out
    assert out.endswith("--full adds every section of each result\n")
    code, _, error = program.run("report", *parts, "--html", "a/b/r.html", "--latex", "c/r.tex", "--figures", "d")
    assert (code, error) == (0, "")
    assert [name for name in program.files() if "." in name] == [
        "a/b/r.html",
        "c/r.tex",
        "d/summary.pdf",
        "d/summary.png",
        "d/summary.svg",
    ]
    assert (program.folder / "c" / "r.tex").read_text().count("\\begin{tabular") == 1
    page = markup.check_page((program.folder / "a" / "b" / "r.html").read_text())
    assert [words for level, words in page.headings if level == 2] == ["All results"]


def test_in_a_full_report_of_several_results_the_matrix_comes_first(program: Program) -> None:
    code, out, _ = program.run("report", FASTER, str(stored.path("agree")), "--full")
    assert code == 0
    assert "jax 0.620 (0.616 to 0.625); not timed, agreement pass" in out
    assert out.index("jax 0.620") < out.index("step time (ms)") < out.index("jax against torch: PASS")


def test_unlike_work_has_rows_of_its_own(program: Program) -> None:
    (program.folder / "parts").mkdir()
    result = result_file.load(Path(FASTER))
    result["spec"] |= {"accumulate": 4, "deterministic": True}
    result_file.replace(program.folder / "parts" / "result.json", result)
    assert program.run("report", FASTER, "parts", "--full", "--markdown", "page.md")[0] == 0
    page = (program.folder / "page.md").read_text()
    assert "| digits-cnn, batch 64 | jax 0.620 (0.616 to 0.625) |" in page
    assert "| digits-cnn, batch 64 in 4 micro-batches, deterministic | jax 0.620 (0.616 to 0.625) |" in page


@pytest.mark.slow
def test_every_format_is_written_in_one_go_and_links_pictures_from_where_it_lies(program: Program) -> None:
    for name in ("text", "a b"):
        (program.folder / name).mkdir()
    options = ("--markdown", "text/r.md", "--latex", "text/r.tex", "--csv", "r.csv", "--figures", "a b")
    code, out, error = program.run("report", FASTER, "--html", "r.html", *options)
    assert (code, error) == (0, "")
    written = ["r.csv", "r.html", "text/r.md", "text/r.tex", *(f"a b/{name}" for name in FIGURES)]
    assert program.files() == sorted(["a b", "text", *written])
    assert sorted(out.splitlines()) == sorted(f"report file: {name}" for name in written)
    page = markup.check_page((program.folder / "r.html").read_text())
    assert page.headings[0][1].startswith("jax is 1.61 times as fast as torch:stock")
    assert "![Memory by definition](<../a%20b/memory.svg>)" in (program.folder / "text/r.md").read_text()
    assert "]{../a b/memory.pdf}" in (program.folder / "text/r.tex").read_text()
    assert len((program.folder / "r.csv").read_text().splitlines()) == 1 + 2 * 8 * 6
    assert (program.folder / "a b/ratio.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_pictures_of_several_results_do_not_overwrite_each_other(program: Program) -> None:
    code, _, _ = program.run(
        "report", FASTER, str(stored.path("agree")), "--full", "--figures", ".", "--html", "r.html"
    )
    assert code == 0
    names = set(program.files())
    assert {"ratio.svg", "1-ratio.svg", "1-steps.pdf", "1-loss.svg", "2-loss.svg"} <= names
    assert "2-ratio.svg" not in names
    page = markup.check_page((program.folder / "r.html").read_text())
    assert next(words for level, words in page.headings if level == 2) == "Workload by precision"
    assert sum(level == 3 for level, _ in page.headings) == 18


@pytest.mark.parametrize("path", H200, ids=lambda path: path.parent.name)
def test_results_of_a_gpu_are_reported(program: Program, path: Path) -> None:
    stored_result = json.loads(path.read_text())
    table = ("--csv", "r.csv") if stored_result["spec"]["rounds"] else ()
    code, _, error = program.run("report", str(path), "--markdown", "r.md", "--latex", "r.tex", *table)
    assert (code, error) == (0, "")
    markup.check_markdown((program.folder / "r.md").read_text())
    markup.check_latex((program.folder / "r.tex").read_text())


REFUSALS = [
    ([FASTER, "mine.json"], f"mine.json: the same result as {FASTER}; allowed: each result once"),
    (["nowhere.json"], "nowhere.json: cannot be read: No such file or directory"),
    (["."], "result.json: cannot be read: No such file or directory"),
    ([FASTER, "nowhere.json", "--html", "r.html"], "nowhere.json: cannot be read"),
    ([FASTER, "--figures", "file"], "--figures: file cannot be made: File exists; allowed: a folder you may write to"),
    ([FASTER, "--csv", "file/r.csv"], "--csv: file cannot be made: File exists"),
    ([FASTER, "--html", "folder"], "cannot write folder: it is not a regular file; allowed: the name"),
    ([FASTER, "--markdown", "r.md", "--html", "folder"], "cannot write folder: it is not a regular file"),
    ([FASTER, "--html", ""], "'' is no name of a file or folder; allowed: a path, for example ./x"),
    ([FASTER, "--csv", "-"], "'-' is no name of a file or folder"),
    ([FASTER, "--figures", ""], "'' is no name of a file or folder"),
    ([""], "'' is no name of a file or folder"),
    ([str(stored.path("agree")), "--csv", "a.csv"], "--csv: no block was timed;"),
    ([FASTER, "--csv", "/dev/null"], "cannot write /dev/null: it is not a regular file"),
    ([FASTER, "--csv", f"{'x' * 300}/r"], "cannot be made: File name too long"),
    ([FASTER, "--csv", "x" * 300], "File name too long"),
    (["x" * 300], "cannot be read: File name too long"),
    ([FASTER, "--csv", "loop"], "loop cannot be followed: Symlink loop"),
    ([FASTER, "--html", "r", "--csv", "./r"], "r would be written over a result or another report"),
    ([FASTER, "--figures", ".", "--html", "ratio.svg"], "ratio.svg would be written over a result or another report"),
    (["mine.json", "--html", "mine.json"], "mine.json would be written over a result or another report"),
    ([FASTER, "--latex", "r.tex", "--figures", "50%"], "LaTeX cannot read the path 50%/ratio.pdf; allowed: letters"),
    (["newer.json", "--html", "r.html"], "was written by a newer samestep (schema_version 2; this one reads up to 1)"),
    (["broken.json"], "broken.json: is not complete, valid JSON"),
    (["cut.json"], "cut.json: is not complete, valid JSON: Unterminated string starting at line 1, column 8"),
    (["notes.txt"], "notes.txt: is no JSON file; allowed: a result.json, its folder, or a bundle"),
    (["nan.json"], "nan.json: holds the literal NaN, which is no JSON"),
]


@pytest.mark.usefixtures("empty_pictures")
@pytest.mark.parametrize(("arguments", "said"), REFUSALS, ids=[" ".join(a).replace(FASTER, "R") for a, _ in REFUSALS])
def test_what_cannot_be_reported_is_refused_and_nothing_is_written(
    program: Program, arguments: list[str], said: str
) -> None:
    for name in ("folder", "50%"):
        (program.folder / name).mkdir()
    (program.folder / "file").write_text("kept")
    (program.folder / "loop").symlink_to("loop")
    text = stored.path("faster").read_text()
    (program.folder / "mine.json").write_text(text)
    (program.folder / "newer.json").write_text(json.dumps({**json.loads(text), "schema_version": 2}))
    (program.folder / "broken.json").write_text(text[: len(text) // 2])
    (program.folder / "notes.txt").write_text("Results of today")
    (program.folder / "cut.json").write_text('{"id": "a')
    (program.folder / "nan.json").write_text(text.replace('"steady": true', '"steady": NaN', 1))
    assert said in _refused(program, *arguments)


def test_figures_of_a_result_that_has_none_are_refused_with_the_reasons(program: Program) -> None:
    result = json.loads(stored.path("agree").read_text())
    result["contenders"] = [{**each, "training": None} for each in result["contenders"]]
    result["agreement"]["trajectory"] = {}
    (program.folder / "mine.json").write_text(json.dumps(result))
    (program.folder / "folder").mkdir()
    error = _refused(program, "mine.json", "--figures", "folder")
    assert "--figures: there is nothing to draw: " in error
    assert error.endswith("; allowed: a result with times or losses\n")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_refused(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    (program.folder / "folder").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everywhere
    said = "folder is not writable; allowed: a folder you may write to"
    assert f"--html: {said}" in _refused(program, FASTER, "--html", "folder/r.html")
    assert f"--figures: {said}" in _refused(program, FASTER, "--figures", "folder")


def test_a_full_disk_leaves_what_was_there(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    (program.folder / "r.md").write_text("before")
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = _refused(program, FASTER, "--markdown", "r.md", "--csv", "r.csv")
    assert "cannot write r.md: No space left on device" in error


def test_no_result_is_refused(program: Program) -> None:
    code, out, error = program.run("report")
    assert (code, out) == (2, "")
    assert "RESULT" in error


def test_a_report_beside_its_result_is_what_the_readme_shows(program: Program) -> None:
    shutil.copytree(stored.path("faster").parent, program.folder / "out")
    code, _, _ = program.run("report", "out", "--html", "out/report.html")
    assert code == 0
    result_file.load(program.folder / "out/result.json")


@pytest.mark.parametrize("option", ["--bencher", "--github-action", "--junit"])
def test_two_results_of_equal_work_do_not_hide_each_other_in_an_export(program: Program, option: str) -> None:
    first, second = (program.folder / name / result_file.FILE_NAME for name in ("first", "second"))
    for path, identity in ((first, None), (second, "0123456789abcdef0123456789abcdef")):
        path.parent.mkdir()
        content = json.loads(Path(FASTER).read_text())
        path.write_text(json.dumps(content | ({"id": identity} if identity else {})))
    error = _refused(program, str(first), str(second), option, "out/file")
    assert f"samestep: {option}: {first} and {second} both have 'digits-cnn, " in error
    assert "one would hide the other; allowed: a file for each" in error
    assert program.run("report", str(first), str(second), "--long-csv", "out/all.csv")[0] == 0
    assert program.run("report", str(first), option, "out/one")[0] == 0
