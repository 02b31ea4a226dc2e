"""Contenders `NAME@REV`: which files they run, and what is refused."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from compare.base.interface import Refused
from compare.base.workloads import Workload
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun
from compare.reproduce import regression
from compare.settings import contenders, pair_spec, plan, revisions
from compare.settings.options import Settings
from compare.settings.plan import Plan


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.email=a@example.org", "-c", "user.name=A"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's checkout: the current folder is `work` in it, with two versions of a model."""
    monkeypatch.setattr("compare.machine.environment.is_installed", lambda package: True)
    folder = tmp_path / "checkout" / "work"
    folder.mkdir(parents=True)
    git(folder.parent, "init", "-q", "-b", "main")
    for version in (1, 2):
        (folder / "net.py").write_text(f"VERSION = {version}\n")
        git(folder.parent, "add", ".")
        git(folder.parent, "commit", "-qm", str(version))
    (folder / "net.py").write_text("VERSION = 3\n")
    monkeypatch.chdir(folder)
    return folder


def pair(reference: str = "net.py:model") -> Workload:
    return pair_spec.make_workload(None, reference, image="8x8x3", classes=4)


def make(folder: Path, *texts: str, workload: Workload | None = None) -> Plan:
    settings = Settings(
        contenders=texts,
        workload=workload or pair(),
        device="cpu",
        out=folder / "out",
        store=folder.parents[1] / "store",
    )
    return plan.make(settings)


def test_each_revision_has_its_own_files_and_the_checkout_keeps_its_own(checkout: Path) -> None:
    made = make(checkout, "torch:stock@main~1", "torch:stock@main", "torch:stock")
    assert [contender.name for contender in made.contenders] == [
        "torch:stock@main~1",
        "torch:stock@main",
        "torch:stock",
    ]
    launcher = Launcher(made, checkout)
    versions = list[str]()
    for contender in made.contenders:
        described = made.spec(contender, checkout / "data").described
        assert described is not None
        reference = described["model"]["arguments"]["torch"]
        assert reference.endswith("net.py:model")
        versions.append(Path(reference.removesuffix(":model")).read_text())
        root = launcher.variables(ContenderRun(contender)).get("SAMESTEP_CODE_ROOT")
        assert root == (f"{contender.code}/work" if contender.code else None)
    assert versions == ["VERSION = 1\n", "VERSION = 2\n", "VERSION = 3\n"]
    again = make(checkout, "torch:stock@main~1", "torch:stock")
    assert again.contenders[0] == made.contenders[0]
    assert len(again.contenders[0].commit) == 40


def test_tunings_and_revisions_stand_beside_each_other() -> None:
    spelled = plan.spell_contenders(Settings(contenders=("torch@v1.0", "torch:stock@main"), tuning="tuned"))
    assert spelled.contenders == ["torch:tuned@v1.0", "torch:stock@main"]
    assert contenders.split_revision("torch:compiled@feature/x~2") == ("torch:compiled", "feature/x~2")


REFUSALS = [
    (("torch@nonesuch", "torch"), "contender torch@nonesuch: there is no revision nonesuch in"),
    (("torch@", "torch"), "contender 'torch@' has an empty revision; allowed: BACKEND[:TUNING]@REV, such as @main"),
    (("torch@-x", "torch"), "contender torch@-x: '-x' is no revision; allowed: a commit, branch or tag"),
]


@pytest.mark.parametrize(("texts", "said"), REFUSALS)
def test_what_is_no_revision_is_refused(checkout: Path, texts: tuple[str, str], said: str) -> None:
    with pytest.raises(Refused) as refusal:
        make(checkout, *texts)
    assert said in str(refusal.value)


def test_a_revision_needs_a_model_of_the_users_own_that_it_has(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^contender torch@main: a revision is of your own models"):
        make(checkout, "torch@main", "jax", workload=plan.find_workload("digits-cnn"))
    (checkout / "new.py").write_text("")
    with pytest.raises(
        Refused, match=r"^contender torch@main: revision main has no new\.py; allowed: one that has it$"
    ):
        make(checkout, "torch@main", "torch", workload=pair("new.py:model"))
    (tmp_path / "other.py").write_text("")
    with pytest.raises(Refused, match="is not in the repository"):
        make(checkout, "torch@main", "torch", workload=pair(f"{tmp_path / 'other.py'}:model"))


def test_the_gate_judges_the_ratio_of_both_revisions() -> None:
    ratio = regression.Ratio(1.05, 1.02, 1.08, 0.95)
    assert regression.judge_ratio(ratio, 0.03) == regression.REGRESSION
    assert regression.judge_ratio(replace_ratio(ratio, 1.01, 0.995, 1.025), 0.03) == regression.UNCHANGED


def replace_ratio(ratio: regression.Ratio, estimate: float, low: float, high: float) -> regression.Ratio:
    return replace(ratio, estimate=estimate, low=low, high=high)


def test_links_of_a_commit_are_left_out(checkout: Path) -> None:
    (checkout / "link.py").symlink_to("/etc/passwd")
    git(checkout.parent, "add", ".")
    git(checkout.parent, "commit", "-qm", "link")
    code = Path(make(checkout, "torch@main", "torch").contenders[0].code)
    assert sorted(path.name for path in code.rglob("*.py")) == ["net.py"]
    assert revisions.find_root(make(checkout, "torch@main", "torch").contenders[0]) == code / "work"
