"""`samestep reproduce` of a user's pair: it names the code, asks for trust, and checks the code's hash."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from compare import pair
from compare.settings.pair_spec import Request
from tests.fakebackend.plans import ROOT
from tests.own import inside

pytestmark = pytest.mark.xdist_group("reproduce")  # the pair is certified once

ARGUMENTS = ("--model-args", "jax.classes=10", "--optimizer", "adam,learning_rate=0.002", "--loss")
LOSS = "cross-entropy,label_smoothing=0.1"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `models.py`, a pair, and `result.json`, its certificate."""
    folder = tmp_path_factory.mktemp("pair")
    shutil.copy(ROOT / "tests/own/bad.py", folder / "models.py")
    pair = ["--jax", f"{folder}/models.py:good_linen", "--torch", f"{folder}/models.py:good_torch"]
    options = [*ARGUMENTS, LOSS, "--input", "16x16x3", "--classes", "10", "--device", "cpu", "--precision", "float64"]
    done = inside.run("agree", *pair, *options, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def reproduce(folder: Path, out: Path, *options: str) -> tuple[int, str, str]:
    done = inside.run("reproduce", str(folder / "result.json"), "--out", str(out), *options)
    return done.returncode, done.stdout, done.stderr


def changed(project: Path, folder: Path, *, marker: Path) -> dict[str, Any]:
    """Write the same result into another folder, of a source that has one line more, which leaves `marker`."""
    source = (project / "models.py").read_text() + f"\nopen({str(marker)!r}, 'w').close()\n"
    (folder / "models.py").write_text(source)
    text = (project / "result.json").read_text().replace(str(project), str(folder))
    (folder / "result.json").write_text(text)
    return json.loads(text)


def test_code_that_nobody_trusts_is_named_and_not_imported(project: Path, tmp_path: Path) -> None:
    changed(project, tmp_path, marker=tmp_path / "imported")
    code, text, error = reproduce(tmp_path, tmp_path / "again")
    sha256 = hashlib.sha256((project / "models.py").read_bytes()).hexdigest()
    assert (code, text) == (2, "")
    for side in ("jax: {}:good_linen", "torch: {}:good_torch"):
        assert f"{side.format(tmp_path / 'models.py')} (source SHA-256 {sha256})" in error
    assert "--trust-code" in error
    assert not (tmp_path / "imported").exists()


def test_a_trusted_pair_is_certified_again_as_it_was(project: Path, tmp_path: Path) -> None:
    code, text, error = reproduce(project, tmp_path, "--trust-code")
    assert code == 0, text + error
    told = json.loads((tmp_path / "reproduction.json").read_text())
    assert told["differences"] == []
    assert {claim["outcome"] for claim in told["claims"]} == {"REPRODUCED"}
    assert f"jax: {project}/models.py:good_linen (source SHA-256 " in text
    again, before = (json.loads((folder / "result.json").read_text()) for folder in (tmp_path, project))
    assert again["spec"] == before["spec"]
    gates = [[(gate["name"], gate["value"]) for gate in each["agreement"]["gates"]] for each in (again, before)]
    assert gates[0] == gates[1]


def test_a_source_that_has_changed_is_refused_by_name_unless_that_is_accepted(project: Path, tmp_path: Path) -> None:
    stored = changed(project, tmp_path, marker=tmp_path / "imported")
    before = stored["spec"]["pair"]["sides"]["torch"]["source_sha256"]
    now = hashlib.sha256((tmp_path / "models.py").read_bytes()).hexdigest()
    code, _, error = reproduce(tmp_path, tmp_path / "refused", "--trust-code")
    assert code == 2
    for said in (f"{tmp_path}/models.py:good_", f"has SHA-256 {now}, stored is {before}", "--changed-code"):
        assert said in error
    assert not (tmp_path / "refused" / "result.json").exists()

    code, text, error = reproduce(tmp_path, tmp_path / "accepted", "--trust-code", "--changed-code")
    assert code == 0, text + error
    told = json.loads((tmp_path / "accepted" / "reproduction.json").read_text())
    assert [each["place"] for each in told["differences"]] == [
        f"pair.sides.{side}.source_sha256" for side in stored["spec"]["pair"]["sides"]
    ]
    assert "another source is accepted" in text


def test_a_factory_gives_the_same_initial_weights_again(tmp_path: Path) -> None:
    made = pair("tests/own/bad.py:good_linen", "tests/own/bad.py:good_torch", image="16x16x3", classes=10)
    first, again = (inside.own_weights(made, Request(), tmp_path) for _ in range(2))
    assert first.keys() == again.keys()
    assert all((again[name] == array).all() for name, array in first.items())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec["model"].pop("torch"), "not name two factories"),
        (lambda spec: spec["model"].update(jax=3), "not name two factories"),
        (lambda spec: spec["model"].update(arguments=[]), "spec.model.arguments"),
        (lambda spec: spec["model"].update(allow=["everything"]), "everything"),
        (lambda spec: spec["optimizer"].update(schedule=3), "describes no pair"),
        (lambda spec: spec["optimizer"].update(nonesuch=3), "nonesuch"),
        (lambda spec: spec.pop("pair"), "spec: has no pair"),
    ],
)
def test_a_file_that_describes_no_pair_is_refused(project: Path, tmp_path: Path, change: Any, said: str) -> None:
    stored = json.loads((project / "result.json").read_text())
    change(stored["spec"])
    (tmp_path / "result.json").write_text(json.dumps(stored))
    code, _, error = reproduce(tmp_path, tmp_path / "again", "--trust-code")
    assert (code, said in error, "Traceback" in error) == (2, True, False), error
