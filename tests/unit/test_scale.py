"""`samestep scale` with the fake backends: scripted step times on each number of devices come out as efficiencies."""

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Generator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
from rich.console import Console

from compare.base import typed_json
from compare.base.interface import Refused
from compare.data import datasets
from compare.data.datasets import Dataset
from compare.machine import environment
from compare.report.measurements import ONE_SEARCH
from compare.report.plots.canvas import Absent, Picture
from compare.report.sentences import DASH
from compare.results import model, result_file
from compare.settings import plan
from compare.settings.options import Settings
from compare.studies import efficiency, scaling, scaling_plot, scaling_result, scaling_sections
from compare.studies import scaling_report as scaling_report
from compare.studies.scaling_model import Entry, Scaling
from tests.fakebackend import plans
from tests.unit import markup, programs

pytestmark = pytest.mark.xdist_group("scale")  # their weak scaling is run once

Result = dict[str, Any]
CONTENDERS = ("fake:stock+ddp", "other:stock+ddp")


class Stage:
    """Runs whole scalings of scripted contenders in a folder of their own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.out, self._monkeypatch = folder, folder / "out", monkeypatch

    def make(
        self, devices: str, *texts: str, strong: bool = False, script: dict[str, Any] | None = None, **changes: Any
    ) -> scaling.Task:
        plans.register(self._monkeypatch, self.folder, script)
        values: dict[str, Any] = {"rounds": 2, "epochs": 1, "device": "cpu", "deadline": 20.0, "batch_size": 8}
        return scaling.make(
            Settings(contenders=texts or CONTENDERS, out=self.out, **values | changes),
            scaling.parse_counts(devices),
            strong=strong,
        )

    def run(self, devices: str, *texts: str, script: dict[str, Any] | None = None, **changes: Any) -> Result:
        """Return the object of the result file."""
        task = self.make(devices, *texts, script=script, **changes)
        found, interruption = scaling.run(task, ["samestep", "scale"])
        assert interruption is None
        assert not plans.remaining(plans.started(self.folder), within=0.5)
        result = scaling_result.build(task, found, ["samestep", "scale"])
        assert scaling_result.load(scaling_result.write(result, self.out)) == result
        return typed_json.write(result)


def typed(result: Result) -> Scaling:
    return typed_json.read(Scaling, result)


def remarks(result: Result) -> list[str]:
    return list(scaling_report.list_remarks(typed(result)))


def figures(result: Result, name: str) -> list[Any]:
    """Return the efficiencies of a contender."""
    return [each["efficiency"]["estimate"] for each in result["scaling"] if name in each["contender"]]


def printed(result: Result, width: int = 1000) -> list[str]:
    """Return the lines of the terminal's report."""
    console = Console(file=io.StringIO(), width=width)
    scaling_report.render(typed(result), console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Result, Path]]:
    """Return a weak scaling on 1, 2 and 4 devices and its folder. One contender has noise, and one has none."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        stage = Stage(tmp_path_factory.mktemp("weak"), monkeypatch)
        noisy = {"launch_noise": 0.02, "step_noise": 0.02, "step_seconds": 2e-3}
        script = {"fake": {"step_seconds": 1e-3, "slowdown": {"2": 1.25, "4": 1.6}}, "other": noisy}
        yield stage.run("1,2,4", script=script, rounds=3), stage.out


def test_weak_scaling_gives_every_device_the_batch(weak: tuple[Result, Path]) -> None:
    result, _ = weak
    assert figures(result, "fake") == pytest.approx([1, 0.8, 0.625])
    assert figures(result, "other") == pytest.approx([1, 1, 1], rel=0.1)
    assert [each["images_per_second"] for each in result["scaling"][:3]] == pytest.approx([8000, 12800, 20000])
    assert [each["batch_size"] for each in result["scaling"]] == [8, 16, 32] * 2
    assert {each["agreement"] for each in result["scaling"]} == {"pass"}
    assert {each["parallel"] for each in result["scaling"]} == {"ddp"}
    assert (result["spec"]["mode"], result["spec"]["batch_size"]) == ("weak", 8)
    for each in result["scaling"][4:]:
        assert each["efficiency"]["low"] < each["efficiency"]["estimate"] < each["efficiency"]["high"]


def test_each_number_of_devices_has_its_own_whole_result(weak: tuple[Result, Path]) -> None:
    result, folder = weak
    assert [run["file"] for run in result["runs"]] == [f"devices-{count}/result.json" for count in (1, 2, 4)]
    paths = [folder / run["file"] for run in result["runs"]]
    runs = [result_file.load(path) for path in paths]
    for run, whole in zip(result["runs"], runs, strict=True):
        assert whole["spec"]["devices"] == run["devices"]
        assert whole["spec"]["batch_size"] == run["batch_size"] == 8 * run["devices"]
        assert {each["settings"]["batch_size"] for each in whole["contenders"]} == {run["batch_size"]}
        assert whole["comparisons"] == run["comparisons"]
        assert not whole["spec"]["energy_requested"]
        assert hashlib.sha256((folder / run["file"]).read_bytes()).hexdigest() == run["sha256"]
    again = efficiency.make_entries([result_file.read(path) for path in paths], ("ddp", "ddp"), "weak")
    assert typed_json.write(again) == result["scaling"]


def test_the_schema_is_draft_07_and_a_second_implementation_agrees(weak: tuple[Result, Path]) -> None:
    shipped = [
        json.loads((Path(result_file.__file__).parent / name).read_text())
        for name in (scaling_result.SCHEMA, result_file.SCHEMA)
    ]
    own, other = shipped
    jsonschema.Draft7Validator.check_schema(own)
    registry = referencing.Registry().with_resource(result_file.SCHEMA, referencing.Resource.from_contents(other))
    validator = jsonschema.Draft7Validator(own, registry=registry)
    validator.validate(weak[0])
    for key in own["required"]:
        less = {name: value for name, value in weak[0].items() if name != key}
        assert not validator.is_valid(less)
        with pytest.raises(Refused, match=f"lacks {key}"):
            scaling_result.validate(less)


def test_the_report_has_every_figure(weak: tuple[Result, Path]) -> None:
    result, _ = weak
    lines = printed(result)
    assert lines[0].startswith("weak scaling of digits-cnn on cpu")
    assert "batch 8 for each device, batch norm sync, 3 rounds on each number of devices" in lines[0]
    cells = [line.split() for line in lines]
    assert ["fake:stock+ddp"] in cells
    assert ["1", "8,000", "1", "1.0", DASH, "pass"] in cells
    assert ["2", "12,800", "0.800", f"(0.800{DASH}0.800)", "1.0", DASH, "pass"] in cells
    assert any(line.startswith("on 4 devices: other:stock+ddp takes ") for line in lines)
    assert "no exposed communication: the run trains on the CPU (all)" in lines
    assert any(line.startswith("efficiency: images/s on N devices over N times those on 1; 95 %") for line in lines)


def test_exposed_communication_is_told_in_milliseconds(weak: tuple[Result, Path]) -> None:
    ratio = {"estimate": 0.8, "low": 0.8, "high": 0.8, "confidence": 0.95}
    entry = weak[0]["scaling"][1] | {"communication_seconds": 0.0012, "efficiency": ratio}
    assert scaling_report.make_cells(typed_json.read(Entry, entry)) == (
        "12,800",
        f"0.800 (0.800{DASH}0.800)",
        "1.0",
        "1.200",
        "pass",
    )


def test_rounds_that_are_lacking_are_told_where_they_are(weak: tuple[Result, Path]) -> None:
    result = deepcopy(weak[0])
    assert not any("interrupted" in line for line in remarks(result))
    for each in result["scaling"]:
        if each["devices"] == 4:
            each["step_seconds"]["samples"].pop()
    assert "interrupted after 2 of 3 rounds on 4 devices" in remarks(result)


def test_the_picture_shows_efficiency_and_speed_with_intervals(weak: tuple[Result, Path]) -> None:
    result, _ = weak
    picture = scaling_plot.make_picture(typed(result))
    assert isinstance(picture, Picture)
    assert "weak scaling of digits-cnn in float32, batch 8 for each device" in picture.basis
    top, bottom = picture.draw().axes
    drawn = [list(line.get_ydata()) for axes in (top, bottom) for line in axes.get_lines()]
    for name in ("fake", "other"):
        assert figures(result, name) in drawn
        of_it = [each for each in result["scaling"] if name in each["contender"]]
        speeds = [each["images_per_second"] for each in of_it]
        assert speeds in drawn
        assert any(line == pytest.approx([speeds[0], 2 * speeds[0], 4 * speeds[0]]) for line in drawn), "the ideal"
        assert all([each["efficiency"][key] for key in ("low", "high")] in drawn for each in of_it)
    assert [tick.get_text() for tick in bottom.get_xticklabels()] == ["1", "2", "4"]


def test_a_picture_of_nothing_is_none(weak: tuple[Result, Path]) -> None:
    nothing = {**weak[0], "scaling": [{**each, "efficiency": None} for each in weak[0]["scaling"]]}
    assert isinstance(scaling_plot.make_picture(typed(nothing)), Absent)


CHANGES = [
    ('"mode": "weak"', '"mode": "fast"', "spec.mode is 'fast'"),
    ('"kind": "scaling"', '"kind": "fit"', "kind is 'fit'"),
    ('"estimate": 1.0', '"estimate": 0.5', "scaling[0].efficiency is"),
    ('"devices": 2', '"devices": 3', "runs are not those of spec.devices"),
    ('"devices_requested"', '"devices_requested": [1, 3], "x"', "spec.devices_requested is [1, 3]; allowed: spec.dev"),
    ('"communication_seconds": null', '"communication_seconds": -1', "scaling[0].communication_seconds is -1"),
    ('"schema_version": 1', '"schema_version": 2', "schema_version is 2"),
]


@pytest.mark.parametrize(("old", "new", "said"), CHANGES)
def test_a_stored_scaling_that_was_changed_is_refused(
    weak: tuple[Result, Path], tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = (weak[1] / "result.json").read_text()
    assert old in text
    (tmp_path / "changed.json").write_text(text.replace(old, new))
    with pytest.raises(Refused) as refusal:
        scaling_result.load(tmp_path / "changed.json")
    assert said in str(refusal.value)


def test_only_what_would_be_read_is_written(weak: tuple[Result, Path], tmp_path: Path) -> None:
    for broken in ({"kind": "fit"}, {"runs": weak[0]["runs"][::-1]}):
        with pytest.raises(Refused):
            scaling_result.write(typed({**weak[0], **broken}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_stored_scaling_is_reported_in_every_format(
    weak: tuple[Result, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        code, out, _ = program.run("report", str(weak[1]))
        assert (code, [line.rstrip() for line in out.splitlines()]) == (0, printed(weak[0], width=80))
        asked = ("--html", "page.html", "--markdown", "page.md", "--latex", "tables.tex", "--figures", ".")
        assert program.run("report", str(weak[1] / "result.json"), *asked)[0] == 0
        pages = {name: (program.folder / name).read_bytes() for name in program.files()}
        assert sorted(pages) == ["page.html", "page.md", "scaling.pdf", "scaling.png", "scaling.svg", "tables.tex"]
        row = ["fake:stock+ddp", "2", "12,800", f"0.800 (0.800{DASH}0.800)", "1.0", DASH, "pass"]
        text = pages["page.md"].decode()
        assert f"| {' | '.join(row)} |" in text
        words = markup.check_markdown(text), markup.check_page(pages["page.html"].decode()).text
        for found in words:
            assert "efficiency on 4 devices: fake:stock+ddp 0.625" in found
            assert "no exposed communication: the run trains on the CPU (all)." in found
            assert "on 4 devices: other:stock+ddp takes " in found
        assert "scaling.pdf" in pages["tables.tex"].decode()
        tables = markup.check_latex(pages["tables.tex"].decode())
        assert row[:3] in [cells[:3] for cells in tables["samestep-scaling-scaling"]]
        one = str(weak[1] / "devices-1" / "result.json")
        assert "a result of samestep scale is allowed alone" in program.run("report", str(weak[1]), one)[2]
        assert "--csv: a scaling has no blocks of its own" in program.run("report", str(weak[1]), "--csv", "a.csv")[2]
        assert sorted(program.files()) == sorted(pages)


def test_what_a_report_claims_of_a_scaling(weak: tuple[Result, Path]) -> None:
    result = deepcopy(weak[0])
    result["scaling"][5]["efficiency"] = None
    said = scaling_sections.summarise(typed(result))
    own = f"efficiency on 4 devices: fake:stock+ddp 0.625 (0.625{DASH}0.625)"
    assert said == f"{own}; no efficiency on 4 devices for other:stock+ddp"
    result["scaling"][2]["efficiency"] = None
    assert scaling_sections.summarise(typed(result)) == "no efficiency on 4 devices for fake:stock+ddp, other:stock+ddp"
    result["spec"]["devices"] = [4]
    assert scaling_sections.summarise(typed(result)) == "4 devices alone: nothing says how the contenders scale"


def test_figures_of_one_number_of_devices_are_refused(weak: tuple[Result, Path], tmp_path: Path) -> None:
    result = deepcopy(weak[0])
    result["spec"]["devices"], result["runs"] = [1], result["runs"][:1]
    result["scaling"] = [each for each in result["scaling"] if each["devices"] == 1]
    path = scaling_result.write(typed(result), tmp_path)
    asked = ["report", str(path), "--figures", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "compare", *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("one number of devices only; allowed: two or more numbers of devices\n")


def test_a_report_says_which_step_times_hang_on_one_search_for_kernels(weak: tuple[Result, Path]) -> None:
    result, (first, second, _) = deepcopy(weak[0]), weak[0]["runs"]
    runs = [result_file.load(weak[1] / run["file"]) for run in (first, second)]
    for run, searches in zip(runs, (("once", "every round"), ("once", "once")), strict=True):
        for each, search in zip(run["contenders"], searches, strict=True):
            each["kernel_search"] = search
    result["spec"]["devices"] = [1, 2]
    entries = efficiency.make_entries([model.from_json(run) for run in runs], ("ddp", "ddp"), "weak")
    result["scaling"] = typed_json.write(entries)
    assert f"{ONE_SEARCH} (fake:stock+ddp; other:stock+ddp on 2)" in remarks(result)
    result["scaling"] = [each | {"step_seconds": None} for each in result["scaling"]]
    assert not any("search for kernels" in line for line in remarks(result))


def test_a_scaling_is_no_comparison_and_says_so(weak: tuple[Result, Path]) -> None:
    with pytest.raises(Refused, match=r"is of samestep scale; allowed: .* devices-1/result\.json"):
        result_file.load(weak[1] / "result.json")
    with pytest.raises(Refused, match="lacks"):
        scaling_result.load(weak[1] / "devices-1" / "result.json")


def test_strong_scaling_splits_the_same_batch_and_begins_where_it_is_told(stage: Stage) -> None:
    faster = {"fake": {"slowdown": {"2": 1.0, "4": 0.8}}, "other": {"slowdown": {"2": 1.0, "4": 0.5}}}
    result = stage.run("2,4", script=faster, strong=True)
    assert figures(result, "fake") == pytest.approx([1, 0.625])
    assert figures(result, "other") == pytest.approx([1, 1])
    assert [each["batch_size"] for each in result["scaling"]] == [8] * 4
    assert {each["mode"] for each in result["scaling"]} == {"strong"}
    text = " ".join(printed(result))
    assert "batch 8 over all devices" in text
    assert "efficiency: images/s on N devices over N/2 times those on 2" in text


def test_data_that_are_the_same_at_any_batch_are_read_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    load = datasets.load

    def spied(*arguments: Any, **options: Any) -> Dataset:
        loaded.append(options["batch_size"])
        return load(*arguments, **options)

    monkeypatch.setattr(plan.datasets, "load", spied)
    task = stage.make("1,2,4")
    assert loaded == [32]
    assert len({id(each.dataset) for each in task.plans}) == 1
    sizes = [len(each.dataset.train.labels) for each in stage.make("1,2", workload="cifar-cnn", batch_size=4).plans]
    assert (loaded[1:], sizes) == ([8, 4], [32, 64])
    stage.make("1,2", workload="cifar-cnn", batch_size=4, strong=True)
    assert loaded[3:] == [4]


@pytest.mark.parametrize(
    "text", ["", "2", "1,1", "2,1", "1,2,", "0,1", "1,two", "1,2.0", "-1,2", "1 ,2", "1,99999", "1,²"]
)
def test_numbers_of_devices_are_whole_and_increase(text: str) -> None:
    with pytest.raises(Refused, match="is not allowed; allowed: 2 to 16 whole numbers from 1 to 9999 that"):
        scaling.parse_counts(text)


def test_numbers_of_devices_are_what_was_written() -> None:
    assert scaling.parse_counts("1,2,4,8") == [1, 2, 4, 8]


def test_batch_norm_of_each_device_is_that_of_one_device_too(stage: Stage) -> None:
    made = stage.make("1,2", batch_norm="local").plans
    assert [(each.devices, each.batch_norm) for each in made] == [(1, "local"), (2, "local")]


def test_more_gpus_than_are_visible_are_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    monkeypatch.setattr(environment, "count_visible_gpus", lambda: 4)
    assert len(stage.make("1,4", device="cuda").plans) == 2
    with pytest.raises(Refused, match="--devices 8 is not allowed: 4 GPUs are visible"):
        stage.make("1,8", device="cuda")
    with pytest.raises(Refused, match="rounds cannot rotate over 8 GPUs: 4 GPUs are visible"):
        plan.make(Settings(contenders=CONTENDERS, out=stage.out, device="cuda", batch_size=8, rotation=8))


def test_rounds_go_around_on_as_many_gpus_as_the_most_devices(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.rotation for each in stage.make("1,2").plans] == [1, 1], "parts of a CPU are alike"
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    monkeypatch.setattr(environment, "count_visible_gpus", lambda: 4)
    names = ["one kind"] * 4
    monkeypatch.setattr(scaling.nvml, "describe", lambda: {"gpus": [{"name": name} for name in names]})
    assert [each.rotation for each in stage.make("1,2,4", device="cuda").plans] == [4, 4, 1]
    assert [each.rotation for each in stage.make("1,2,3", device="cuda").plans] == [3, 1, 1]
    names[3] = "another"
    assert [each.rotation for each in stage.make("1,2,4", device="cuda").plans] == [1, 1, 1]


def test_a_report_says_on_which_gpus_rounds_were(weak: tuple[Result, Path]) -> None:
    result = deepcopy(weak[0])
    assert "rotate" not in " ".join(printed(result))
    result["spec"]["rotation"] = 4
    scaling_result.validate(result)
    text = " ".join(printed(result))
    assert "rounds on 1, 2 of the 4 GPUs rotate over all of them, in whole parts" in text
    uneven = "the parts of the GPUs have different numbers of rounds that count"
    assert f"on 1 device, {uneven}: 1, 1, 1, 0" in text
    assert f"on 2 devices, {uneven}: 2, 1" in text
    assert f"on 4 devices, {uneven}" not in text
    result["runs"][1]["voided"] = [{"round": 1, "reason": "Xid 79"}]
    assert f"on 2 devices, {uneven}" not in " ".join(printed(result)), "one on each counts"
