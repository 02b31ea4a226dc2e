"""The one definition of every option: what the ways in, the help and the result file make of it."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

import compare
from compare.base.interface import Refused
from compare.cli.app import make_reference
from compare.plugin import comparison_request
from compare.results import result_file
from compare.settings import options
from compare.settings.options import COMMAND_LINE, GROUPS, SETTINGS, Settings
from tests.unit import programs

SCREEN = 48
"""Lines of one screen."""

STORED = {option.spec_key: option for option in SETTINGS.values() if option.spec_key}
VALUES: list[Any] = [
    None,
    True,
    False,
    "x",
    "",
    0,
    1,
    2,
    -1,
    0.5,
    1.5,
    2**40,
    [],
    "cpu",
    "cuda",
    "auto",
    "sync",
    "turns",
]


@pytest.mark.parametrize("key", STORED)
def test_the_schema_file_allows_what_the_definition_allows(key: str) -> None:
    schema = result_file.load_schema(result_file.SCHEMA)
    theirs = jsonschema.Draft7Validator({"$ref": f"#/definitions/spec/properties/{key}", **schema})
    ours = jsonschema.Draft7Validator(options.make_spec_schema()[key])
    for value in VALUES if key != "deadline_seconds" else VALUES[:-8]:
        assert theirs.is_valid(value) == ours.is_valid(value), value


def test_a_key_that_only_the_definition_has_is_in_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "make_spec_schema", lambda: {"new": {"type": "integer"}})
    described = result_file.load_schema(result_file.SCHEMA)["definitions"]["spec"]["properties"]
    assert (described["new"], described["seed"]) == ({"type": "integer"}, {"$ref": "#/definitions/count"})


def test_settings_come_back_from_the_spec_that_they_make() -> None:
    settings = Settings(seed=7, energy=False, deadline=12.5, data="somewhere", batch_size=8, rounds=3, epochs=2)
    again = options.from_spec(options.to_spec(settings))
    assert Settings(**again) == settings


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_is_a_value_that_its_option_allows(name: str) -> None:
    Settings().check()
    option = SETTINGS[name]
    if option.default is not None:
        option.check(option.default)
    with pytest.raises(Refused, match=" is not allowed; allowed: ") as refusal:
        option.check(object())
    assert str(refusal.value).split()[0].removeprefix("--") in (name, name.replace("_", "-"))


def test_every_setting_of_the_command_line_has_its_name_in_python_and_in_pytest() -> None:
    for option in options.list_options("compare"):
        if option.in_python and option.name in SETTINGS:
            assert option.name in options.list_python_names("compare")
    assert {"precision", "request", "check"} <= set(comparison_request.SETTINGS)
    assert not {"rotation", "confidence", "communication"} & set(options.list_python_names("compare"))


def test_help_of_compare_fits_two_screens_and_begins_with_ten_examples(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        code, out, error = program.run("compare", "--help")
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 2 * SCREEN
    assert max(map(len, lines)) <= 80
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Arguments", "Most used", *GROUPS]
    most_used = out.partition("Most used:")[2].partition("What to compare:")[0]
    assert most_used.count("Example: ") == 10
    assert most_used.count("\n  --") == 10


def test_the_reference_has_every_option_of_every_command() -> None:
    pages = {page.name: page for page in make_reference()}
    for name, page in pages.items():
        flags = {row.term.split()[0] for row in page.rows if row.group}
        assert {option.flag for option in options.list_options(name) if option.flag and not option.is_hidden} <= flags
        assert all(row.text for row in page.rows)
    compared = {row.term: row for row in pages["compare"].rows}
    assert (compared["--batch-size N"].default, compared["--batch-size N"].unit) == ("the workload's", "images")
    assert compared["--jax FILE.py:NAME"].group == "Your own models"
    assert set(COMMAND_LINE) & set(SETTINGS) == set()


def test_none_is_the_default_in_python() -> None:
    with pytest.raises(Refused, match=r"^accumulate 3 with batch 64 is not allowed"):
        compare.run("digits-cnn", ["torch", "jax"], precision=None, rounds=None, accumulate=3, device="cpu")


def test_keys_of_the_result_file_stay() -> None:
    assert options.to_spec(Settings()).keys() >= {
        *("accumulate", "agreement_requested", "batch_norm", "batch_size", "cold_compile_requested", "confidence"),
        *("data_folder", "deadline_seconds", "design", "deterministic", "device", "devices", "energy_requested"),
        *("epochs", "images", "margin", "precision", "rotation", "rounds_requested", "search_anew_requested", "seed"),
    }
