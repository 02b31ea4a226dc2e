"""What each format says of a result, with names that would be markup if they were not escaped."""

import base64
import csv as reader
import hashlib
import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.report import environment_table, figures, matrix
from compare.report.document import Report, Section, Table
from compare.report.formats import csv, html, latex, markdown
from compare.report.sentences import DASH, describe_comparison, make_plain
from compare.results.model import Environment
from tests.unit import markup, stored
from tests.unit.markup import empty_pictures as empty_pictures
from tests.unit.mutations import HOSTILE_TEXTS
from tests.unit.result_factory import complete, make_comparison, make_contender, make_result, typed


def _hostile() -> dict[str, Any]:
    """A result in which every text is hostile, also where a file that says so would be refused."""
    names = [f"{text} {number}" for number, text in enumerate(HOSTILE_TEXTS)]
    result = make_result(contenders=[make_contender(name) for name in names])
    result["comparisons"] = [make_comparison(name, baseline=names[0]) for name in names[1:]]
    pair = result["agreement"]["pairs"][0]
    for name in HOSTILE_TEXTS[1:]:
        result["agreement"]["pairs"].append({**pair, "contender": name, "first_mismatch": name, "notes": [name]})
        result["voided"].append({"round": 1, "reason": name})
    result["environment"] = {name: name for name in HOSTILE_TEXTS} | {"variables": {"XLA_FLAGS": HOSTILE_TEXTS[1]}}
    result["contenders"][0]["settings"] = {name: name for name in HOSTILE_TEXTS}
    result["command"] = list(HOSTILE_TEXTS)
    result["id"] = result["spec"]["data_source"] = result["spec"]["workload"] = HOSTILE_TEXTS[2]
    return result


_SIDE = {"framework": "torch", "source_sha256": "0" * 64, "dropout": [], "notes": []}
PAIR = {
    "map": {},
    "weights_from": "torch",
    "allowed": [],
    "different_alone": {},
    "sides": {"torch": _SIDE, "jax": _SIDE},
}


def _report(*found: dict[str, Any]) -> Report:
    return matrix.report(list(map(typed, found)))


def _rows(text: str) -> list[dict[str, str]]:
    return list(reader.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("name", stored.NAMES)
def test_the_page_leads_with_the_verdict_and_holds_every_section(name: str) -> None:
    result = stored.result(name)
    page = markup.check_page(html.render(_report(result)))
    said = {
        "faster": lambda: describe_comparison(typed(result).comparisons[0]),
        "void": lambda: "DISTURBED, no verdict: 5 of 5 rounds are void",
        "agree": lambda: "jax agrees with torch in float32; nothing was timed",
    }[name]()
    assert page.text.partition(" - samestep ")[2].startswith(said)
    assert [words for _, words in page.headings][1:] == [
        *("Ratio of step times", "Measured", "Step times by round", "Memory by definition", "Loss curves"),
        *("Certificate", "Fairness: effective settings", "Telemetry", "Environment and command"),
    ]
    assert " ".join(result["command"]) in page.text
    assert result["spec"]["weights_sha256"] in page.text
    for gate in result["agreement"]["pairs"][0]["gates"]:
        assert f"{gate['name']} {gate['value']:.2g}" in page.text
    for tensor in result["agreement"]["pairs"][0]["tensors"]:
        assert tensor["name"] in page.text
    drawn, absent = {"faster": (5, 0), "void": (4, 1), "agree": (1, 4)}[name]
    assert len(page.of("svg")) == drawn
    assert page.text.count("Nothing is drawn: ") == absent
    assert all(attributes["aria-label"] for attributes in page.of("svg"))
    assert page.of("svg")[0]["role"] == "img"


@pytest.mark.usefixtures("empty_pictures")
def test_the_pages_policy_lets_only_its_own_style_through() -> None:
    text = html.render(_report(make_result()))
    page = markup.check_page(text)
    (style,) = (page.style,)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = (each["content"] for each in page.of("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{digest}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_hostile_texts_are_shown_as_text_on_the_page() -> None:
    page = markup.check_page(html.render(_report(_hostile())))
    for text in filter(None, map(make_plain, HOSTILE_TEXTS)):
        assert text in page.text


def test_hostile_texts_are_words_in_markdown() -> None:
    words = markup.check_markdown(markdown.render(_report(_hostile()), {}))
    for text in filter(None, map(make_plain, HOSTILE_TEXTS)):
        assert text in words


@pytest.mark.parametrize(
    "text",
    [
        "- a",
        "+",
        "12. a",
        "1)",
        "---",
        "===",
        "www.example.org",
        "http://example.org",
        "me@example.org",
        "a  b",
        "`",
        "~~a~~",
        "_a_ __b__",
    ],
)
def test_no_word_is_taken_for_markdown(text: str) -> None:
    assert markup.check_markdown(markdown.escape(text)) == make_plain(text)
    assert markup.check_markdown(f"| a |\n| --- |\n| {markdown.escape(text)} |\n") == f"a{make_plain(text)}"
    assert "www." not in markdown.escape(text)
    assert "//" not in markdown.escape(text) or "://" not in markdown.escape(text)
    assert "@" not in markdown.escape(text)


def test_hostile_texts_do_not_break_latex() -> None:
    tables = markup.check_latex(latex.render(_report(_hostile()), {}))
    assert set(tables) >= {"samestep-ratio-ratios", "samestep-fairness-settings", "samestep-environment-first"}
    assert latex.escape('a_b 100% {x} \\y ~ ^ & # $ < > "') == (
        r"a\_b 100\% \{x\} \textbackslash{}y \textasciitilde{} \textasciicircum{} \& \# \$ \textless{} \textgreater{} "
        r"\char34{}"
    )
    assert latex.escape("--out 'x' `y`") == r"-{}-out 'x' `y`"
    assert latex.escape("5 µm, 3 °, é, \N{SNOWMAN}") == r"5 \ensuremath{\mu}m, 3 \ensuremath{^\circ}, é, {[}U+2603]"
    assert latex.escape("a" * 20) == r"aaaaaaaa\allowbreak{}aaaaaaaa\allowbreak{}aaaa"


def test_latex_has_booktabs_tables_whose_captions_state_n_interval_and_hardware() -> None:
    result = stored.result("faster")
    text = latex.render(_report(result), {"ratio": "figures/ratio.pdf"})
    tables = markup.check_latex(text)
    assert tables["samestep-measured-figures"][0] == ["", "torch:stock", "jax"]
    assert ["images/s", "33,311", "53,713"] in tables["samestep-measured-figures"]
    assert tables["samestep-ratio-ratios"][1][:4] == ["jax", "torch:stock", "0.620", "0.616 to 0.625"]
    basis = "n = 8 rounds of fresh processes, 95 \\% intervals by Student's t over rounds"
    assert basis in text.partition(r"\label{tab:samestep-ratio")[0].rpartition(r"\caption{")[2]
    figure = text.partition(r"\begin{figure}")[2].partition(r"\end{figure}")[0]
    assert r"\includegraphics[width=" in figure
    assert r"]{figures/ratio.pdf}" in figure
    assert basis in figure
    assert "Intel(R) Xeon(R)" in figure
    marked = [row for row in tables["samestep-fairness-settings"] if "differs" in row[-1]]
    assert marked == [[r"\textbf{compile}", r"\textbf{off}", r"\textbf{on}", r"\textbf{differs}"]]
    with pytest.raises(Refused, match="LaTeX cannot read the path"):
        latex.render(_report(result), {"ratio": "50%/ratio.pdf"})


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
@pytest.mark.parametrize("document", ["article", "[twocolumn]article"])
def test_latex_compiles(tmp_path: Path, document: str) -> None:
    report = _report(stored.result("faster"), _hostile())
    for name, picture in report.pictures().items():
        (tmp_path / f"{name}.pdf").write_bytes(figures.draw(picture, "pdf"))
    links = {name: f"{name}.pdf" for name in report.pictures()}
    (tmp_path / "report.tex").write_text(latex.render(report, links))
    option, _, name = document.rpartition("]")
    head = rf"\documentclass{option}{']' if option else ''}{{{name}}}{latex.PACKAGES}"
    (tmp_path / "main.tex").write_text(rf"{head}\begin{{document}}\input{{report}}\end{{document}}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "main.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]


def test_csv_has_a_row_for_every_block_with_what_became_of_it() -> None:
    result = make_result(voided=[{"round": 2, "reason": "a foreign process"}])
    rows = _rows(csv.render([typed(result)]))
    assert list(rows[0]) == list(csv.COLUMNS)
    for contender in result["contenders"]:
        own = [row for row in rows if row["contender"] == contender["name"]]
        samples = [seconds for blocks in contender["step_seconds"]["samples"] for seconds in blocks]
        assert [float(row["seconds_per_step"]) for row in own] == samples
        assert [int(row["round"]) for row in own] == [number for number in range(1, 11) for _ in range(3)]
        assert [int(row["block"]) for row in own] == [1, 2, 3] * 10
        assert {row["round"] for row in own if row["void"] == "1"} == {"2"}
    assert {row["void_reason"] for row in rows if row["void"] == "1"} == {"a foreign process"}
    assert {(row["ratio_low"], row["ratio_high"], row["winner"]) for row in rows if row["contender"] == "jax"} == {
        ("0.688", "0.711", "jax")
    }
    assert {row["verdict"] for row in rows if row["contender"] == "torch"} == {""}


def test_csv_claims_nothing_that_is_invalid_and_holds_no_formula() -> None:
    invalid = make_result(comparisons=[make_comparison(verdict="INVALID")])
    assert {(row["ratio"], row["winner"]) for row in _rows(csv.render([typed(invalid)]))} == {
        ("", ""),
        ("", "INVALID"),
    }
    texts = {row["contender"] for row in _rows(csv.render([typed(_hostile())]))}
    assert "'=1+1 7" in texts
    assert not any(text.startswith(("=", "+", "-", "@")) for text in texts)


@pytest.mark.usefixtures("empty_pictures")
def test_several_results_give_a_matrix_in_every_format() -> None:
    faster = make_result(spec={"workload": "cifar-cnn", "precision": "bfloat16"})
    slower = make_result(spec={"precision": "bfloat16"}, comparisons=[make_comparison(verdict="SLOWER")])
    equal = make_result(comparisons=[make_comparison(verdict="EQUIVALENT")])
    invalid = make_result(spec={"workload": "cifar-cnn"}, comparisons=[make_comparison(verdict="INVALID")])
    certified = stored.result("agree")
    found = [faster, slower, equal, invalid, certified]
    expected = [
        ["workload", "float32", "bfloat16"],
        ["cifar-cnn, batch 64, cpu (Example CPU)", "INVALID", "jax 0.699 (0.688 to 0.711)"],
        ["digits-cnn, batch 64, cpu (Example CPU)", "equal 1.001 (0.996 to 1.006)", "torch 1.430 (1.406 to 1.453)"],
        ["digits-cnn, batch 64, cpu (Intel(R) Xeon(R) Processor @ 2.10GHz)", "not timed, agreement pass", ""],
    ]
    report = _report(*found)
    words = markup.check_page(html.render(report)).text
    assert " ".join(" ".join(row) for row in expected).strip() in " ".join(words.split())
    lines = markdown.render(report, {}).splitlines()
    assert "| cifar-cnn, batch 64, cpu (Example CPU) | INVALID | jax 0.699 (0.688 to 0.711) |" in lines
    assert markup.check_latex(latex.render(report, {}))["samestep-matrix-matrix"][1:3] == expected[1:3]
    rows = {
        (row["workload"], row["precision"], row["winner"], row["ratio"])
        for row in _rows(csv.render(list(map(typed, found))))
    }
    assert {("cifar-cnn", "bfloat16", "jax", "0.699"), ("digits-cnn", "bfloat16", "torch", "1.43")} <= rows
    assert ("cifar-cnn", "float32", "INVALID", "") in rows
    assert report.verdict == (
        "5 results: jax against torch is FASTER in 1 of 4, SLOWER in 1 of 4, EQUIVALENT in 1 of 4, INVALID in 1 of 4"
    )
    assert set(report.pictures()) >= {"ratio", "1-ratio", "5-loss"}


def test_pairs_and_levels_stand_in_the_matrix_where_they_differ() -> None:
    ratio = make_comparison()["ratio"] | {"confidence": 0.99}
    other = make_comparison("flax", ratio=ratio)
    found = [make_result(), make_result(contenders=[make_contender(), make_contender("flax")], comparisons=[other])]
    (table,) = matrix.make_overview(list(map(typed, found))).tables
    assert table.columns[:2] == ("workload", "contenders")
    assert table.rows == [
        ("digits-cnn, batch 64", "jax / torch", "jax 0.699 (95 % 0.688 to 0.711)"),
        ("digits-cnn, batch 64", "flax / torch", "flax 0.699 (99 % 0.688 to 0.711)"),
    ]


def test_users_own_pairs_have_rows_of_their_own() -> None:
    def row(*models: str) -> str:
        model = {"family": "pair"} | {
            side: f"{name}:model" for side, name in zip(("torch", "jax"), models, strict=True)
        }
        spec = {"workload": "pair", "pair": PAIR, "model": model}
        found.append(make_result(spec=spec))
        return matrix.make_overview(list(map(typed, found))).tables[0].rows[-1][0]

    found = [make_result()]
    assert row("theirs.py", "mine.py") == "pair, batch 64"
    assert row("theirs.py", "mine.py") == "pair, batch 64"
    assert row("theirs.py", "new.py") == "pair (theirs.py:model and new.py:model), batch 64"
    assert len(matrix.make_overview(list(map(typed, found))).tables[0].rows) == 3


@pytest.mark.usefixtures("empty_pictures")
def test_a_run_that_was_cut_off_before_a_round_says_so_in_every_format() -> None:
    sides = [make_contender(name, step_seconds=None, images_per_second=None) for name in ("torch", "jax")]
    cut = complete(make_result(contenders=sides, spec={"rounds": 0, "rounds_requested": 4}))
    said = "jax against torch: INCONCLUSIVE, interrupted after 0 of 4 rounds"
    assert said in markup.check_page(html.render(_report(cut))).text
    assert "no round was completed" in markdown.render(_report(cut), {})
    assert f"# {said}" in markdown.render(_report(cut), {})
    assert latex.render(_report(cut), {}).count("no round was completed")
    several = matrix.report([typed(cut), typed(make_result())])
    assert "jax against torch is INCONCLUSIVE in 1 of 2, FASTER in 1 of 2" in several.claim


def test_a_workload_s_rows_stand_together_in_the_matrix() -> None:
    found = [make_result() for _ in range(3)]
    found[1]["spec"]["workload"] = "cifar-cnn"
    found[2]["spec"]["batch_size"] = 8
    (table,) = matrix.make_overview(list(map(typed, found))).tables
    assert [row[0] for row in table.rows] == ["digits-cnn, batch 64", "digits-cnn, batch 8", "cifar-cnn, batch 64"]


def test_tasks_request_sizes_and_pruned_models_have_a_row_each_in_the_matrix() -> None:
    sizes = [make_comparison(verdict="SLOWER", batch_size=1), make_comparison(verdict="EQUIVALENT", batch_size=64)]
    requests = make_result(spec={"task": "infer", "batch_sizes": [1, 64]}, comparisons=sizes)
    found = [make_result(), requests, make_result(spec={"prune": 0.5})]
    (table,) = matrix.make_overview(list(map(typed, found))).tables
    assert table.rows == [
        ("digits-cnn, batch 64", "jax 0.699 (0.688 to 0.711)"),
        ("digits-cnn infer, batch 1", "torch 1.430 (1.406 to 1.453)"),
        ("digits-cnn infer, batch 64", "equal 1.001 (0.996 to 1.006)"),
        ("digits-cnn, pruned by 50%, batch 64", "jax 0.699 (0.688 to 0.711)"),
    ]
    assert "step times or request times" in table.caption


def test_other_numbers_of_devices_have_a_row_each_in_the_matrix() -> None:
    specs: list[dict[str, Any]] = [{}, {"devices": 2}, {"devices": 4}, {"devices": 4, "batch_norm": "local"}]
    sides = [make_contender(name, settings={"devices": count}) for name, count in (("torch", 2), ("jax", 1))]
    found = [make_result(spec=spec) for spec in specs] + [make_result(spec={"devices": 2}, contenders=sides)]
    (table,) = matrix.make_overview(list(map(typed, found))).tables
    assert [row[0] for row in table.rows] == [
        "digits-cnn, batch 64",
        "digits-cnn, batch 64 over 2 devices, batch norm sync",
        "digits-cnn, batch 64 over 4 devices, batch norm sync",
        "digits-cnn, batch 64 over 4 devices, batch norm local",
    ]


def test_nothing_of_an_invalid_comparison_reads_as_a_speed() -> None:
    report = _report(make_result(comparisons=[make_comparison(verdict="INVALID")]))
    for text in (html.render(report), markdown.render(report, {}), latex.render(report, {})):
        assert "INVALID" in text
        assert "0.699" not in text
        assert "as fast" not in text


def test_the_first_facts_of_an_environment_hold_its_variables_and_what_went_in() -> None:
    environment = {
        "variables": {"XLA_FLAGS": "--xla_dump_to=/a"},
        "packages": {"rich": "14", "torch": "2.13"},
        "nvidia": {"driver": None, "gpus": [{"name": "H200"}]},
        "memory_bytes": 16 * 2**30,
        "git": {"dirty": True},
    }
    first, everything = environment_table.make_tables(Environment(extra=environment), {"seed": "0", "weights": None})
    assert first.rows == [
        ("git.dirty", "yes"),
        ("memory_bytes", "17,179,869,184"),
        ("nvidia.gpus[0].name", "H200"),
        ("packages.torch", "2.13"),
        ("variables.XLA_FLAGS", "--xla_dump_to=/a"),
        ("seed", "0"),
        ("weights", DASH),
    ]
    assert ("packages.rich", "14") in everything.rows


@pytest.mark.usefixtures("empty_pictures")
def test_fairness_shows_the_variables_that_each_side_was_given() -> None:
    flags = "--xla_gpu_enable_command_buffer=+CONVOLUTION,+WHILE"
    given = make_contender("jax", variables={"JAX_PLATFORMS": "cuda", "XLA_FLAGS": flags})
    report = _report(make_result(contenders=[make_contender(variables={}), given]))
    (table,) = next(each for each in report.parts[0].sections if each.name == "fairness").tables
    assert [row for row in table.rows if row[0].startswith("variable ")] == [
        ("variable JAX_PLATFORMS", "–", "cuda", "not on every side"),  # noqa: RUF001 -- the report's dash
        ("variable XLA_FLAGS", "–", flags, "not on every side"),  # noqa: RUF001 -- the report's dash
    ]
    for text in (html.render(report), markdown.render(report, {})):
        assert "xla_gpu_enable_command_buffer" in text.replace("\\", "")


def test_fairness_marks_what_one_of_several_has_not() -> None:
    contenders = [make_contender(name, settings={"compile": name != "jax"}) for name in ("torch", "jax", "flax")]
    section = next(
        each for each in _report(make_result(contenders=contenders)).parts[0].sections if each.name == "fairness"
    )
    (table,) = section.tables
    assert [row for row in table.rows if row[-1]] == [("compile", "on", "off", "on", "differs")]


def test_fairness_marks_what_differs() -> None:
    settings = {"compile": True, "tf32": False, "layer_dtypes": {"conv": "float32", "dense": "float32"}}
    other = {"compile": False, "tf32": True, "donation": None, "layer_dtypes": {"conv": "float32", "dense": "float16"}}
    result = make_result(contenders=[make_contender(settings=settings), make_contender("jax", settings=other)])
    section = next(each for each in _report(result).parts[0].sections if each.name == "fairness")
    (table,) = section.tables
    assert [row for row in table.rows if row[-1]] == [
        ("compile", "on", "off", "differs"),
        ("tf32", "off", "on", "differs, and changes the mathematics"),
        (
            "layer_dtypes",
            "float32 (2 of 2)",
            "float32 (1 of 2), float16 (1 of 2)",
            "differs, and changes the mathematics",
        ),
        ("layer_dtypes of dense", "float32", "float16", "differs, and changes the mathematics"),
        ("donation", "–", "none", "not on every side"),  # noqa: RUF001 -- the report's dash
    ]
    assert [table.rows[index][0] for index in sorted(table.marked)] == [
        "compile",
        "tf32",
        "layer_dtypes",
        "layer_dtypes of dense",
    ]


@pytest.mark.usefixtures("empty_pictures")
def test_rows_about_the_row_above_are_indented_in_every_format() -> None:
    made = matrix.report([typed(make_result())])
    page, text, tables = html.render(made), markdown.render(made, {}), latex.render(made, {})
    for label in ("from cache (s)", "95 % interval"):
        assert f'<tr class="nested"><th scope="row" class="short">{label}</th>' in page
        assert f"| &nbsp;&nbsp;{label} |" in text
        assert rf"    \quad {latex.escape(label)} &" in tables
    assert page.count('<tr class="nested">') == text.count("&nbsp;&nbsp;") == tables.count(r"\quad") == 2
    assert ".nested th" in page


def test_columns_of_words_stand_to_the_left_and_figures_to_the_right() -> None:
    rows = (("unet", "FASTER", "1.2"), ("vgg16", DASH, DASH))
    table = Table("summary", "A caption.", ("workload", "verdict", "ms"), rows)
    report = Report("", "", Section(name="summary", title="A head", tables=[table]), ())
    assert "| --- | --- | ---: |" in markdown.render(report, {})
    assert "llr" in latex.render(report, {})
    assert '<th scope="col" class="words">verdict' in html.render(report)
