"""samestep from Python: the same run, result file and refusals as of the command line."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

import compare
from compare.base.interface import Refused
from compare.execution import execute
from compare.plugin import comparison_request
from compare.plugin.result import Result
from compare.results import result_file
from compare.settings import options
from compare.settings.plan import Plan
from tests.fakebackend import plans
from tests.unit.result_factory import make_comparison, make_contender, make_result, typed

PAIR = compare.pair("a.b:c", "d.e:f", image="8x8x1", classes=3)


@pytest.fixture(autouse=True)
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plans.register(monkeypatch, tmp_path)


def test_contenders_are_compared_and_the_result_kept(tmp_path: Path):
    found = compare.run("digits-cnn", ["fake", "other"], out=tmp_path / "out", rounds=2, epochs=1, device="cpu")
    assert found.agreement == "pass"
    assert found.ratio("other").estimate > 0
    verdict = found.verdict("other")
    assert repr(found) == f"<comparison of digits-cnn with fake: agreement pass, other {verdict}>"
    with pytest.raises(LookupError, match="fake is the baseline"):
        found.verdict("fake")
    assert result_file.load(found.path) == found.raw
    assert found.path.parent == tmp_path / "out"


def test_a_workload_may_be_an_object_and_nothing_is_timed_to_certify(tmp_path: Path):
    small = compare.Workload(
        "mine", "", compare.ModelSpec("simple", (8, 8, 1), 10), compare.OptimizerSpec("sgd", 0.1), "digits", 32, 1
    )
    found = compare.certify(small, ["fake", "other"], seeds=2, out=tmp_path, device="cpu")
    assert (found.raw["spec"]["workload"], found.raw["spec"]["batch_size"]) == ("mine", 32)
    assert found.raw["comparisons"] == []
    assert found.agreement == "pass"
    assert repr(found) == "<comparison of mine with fake: agreement pass, nothing timed>"
    for judge in (found.verdict, found.ratio):
        with pytest.raises(LookupError, match=r"^nothing was timed, so there is no verdict on other"):
            judge("other")
        with pytest.raises(LookupError, match=r"^no contender 'third' in this comparison"):
            judge("third")


def test_times_may_be_laid_beside_others_where_any_claim_is_made_of_them():
    sides = [make_contender(name) for name in ("torch", "jax", "flax")]

    def comparable(*verdicts: str) -> list[bool]:
        claims = [make_comparison(name, verdict) for name, verdict in zip(("jax", "flax"), verdicts, strict=True)]
        found = Result(typed(make_result(contenders=sides, comparisons=claims)), Path())
        return [found.comparable(name) for name in ("torch", "jax", "flax")]

    assert comparable("FASTER", "INVALID") == [True, True, False]
    assert comparable("INVALID", "INVALID") == [False, False, False]


def test_what_cannot_be_honoured_is_refused(tmp_path: Path):
    with pytest.raises(Refused, match="unknown workload"):
        compare.run("nonesuch", out=tmp_path)
    with pytest.raises(Refused, match=r"rematerialisation of a model of your own: .* allowed: the workloads cifar-cnn"):
        compare.run(PAIR, ["fake", "other:rematerialisation"], out=tmp_path)
    with pytest.raises(Refused, match=r"^seeds 1 is not allowed"):
        compare.certify("digits-cnn", seeds=1, out=tmp_path)
    with pytest.raises(AttributeError, match="nonesuch"):
        compare.nonesuch  # noqa: B018 -- looking it up is what is tested


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workload": 5}, "workload 5 is not allowed; allowed: a name that samestep workloads lists, or a compare.W"),
        ({"contenders": "torch jax"}, "contenders 'torch jax' is not allowed; allowed: a list such as ['torch:tuned'"),
        ({"contenders": [1, 2]}, "contenders [1, 2] is not allowed; allowed: a list such as"),
        ({"contenders": 5}, "contenders 5 is not allowed; allowed: a list such as"),
        ({"out": 5}, "out 5 is not allowed; allowed: a folder's path"),
        ({"rounds": 1}, "rounds 1 is not allowed; allowed: a whole number from 2"),
        ({"batch_size": "64"}, "batch_size '64' is not allowed; allowed: a whole number from 2"),
        ({"data": 5}, "data 5 is not allowed; allowed: a folder's path"),
        ({"data": "nowhere"}, "data nowhere: workload digits-cnn takes no folder"),
        ({"design": ["turns"]}, "design ['turns'] is not allowed; allowed: alternating, turns, sequential"),
        ({"request": 5}, "request 5 is not allowed; allowed: a compare.Request"),
        *(({name: 3}, f"run has no setting {name!r}") for name in ("dataset", "cluster", "least_contenders")),
        ({"nosuch": 1}, "run has no setting 'nosuch'; allowed: accumulate, agreement, batch_norm, batch_size, "),
        ({"batchsize": 8}, "run has no setting 'batchsize'; did you mean 'batch_size'? allowed: accumulate, "),
    ],
    ids=str,
)
def test_an_argument_of_another_kind_is_refused_by_its_name_in_python(
    tmp_path: Path, changes: dict[str, Any], said: str
):
    arguments = {"workload": "digits-cnn", "contenders": ["fake", "other"], "out": tmp_path} | changes
    with pytest.raises(compare.Refused) as refusal:
        compare.run(**arguments)
    assert str(refusal.value).startswith(said)


def test_what_a_certificate_has_no_use_for_is_refused(tmp_path: Path):
    with pytest.raises(
        Refused,
        match=r"^certify has no setting 'rounds'; allowed: accumulate, batch_norm, .* precision, .*seed",
    ):
        compare.certify("digits-cnn", out=tmp_path, rounds=3)
    with pytest.raises(Refused, match=r"^certify has no setting 'margin'; allowed: (?!.*(design|energy|margin))"):
        compare.certify("digits-cnn", out=tmp_path, margin=0.1)
    with pytest.raises(Refused, match=r"^seeds 'x' is not allowed; allowed: a whole number from 2 to 1000"):
        compare.certify("digits-cnn", out=tmp_path, seeds="x")  # pyright: ignore[reportArgumentType]


def test_a_pair_that_is_not_timed_is_not_compiled_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(plan: Plan, command: list[str], **_: object) -> NoReturn:
        raise Refused(", ".join(each.name for each in plan.contenders))

    monkeypatch.setattr(execute, "execute", fail)
    for workload, named in ((PAIR, "torch:stock, jax:pieces"), ("digits-cnn", "torch, jax")):
        with pytest.raises(Refused, match=f"^{named}$"):
            compare.certify(workload, out=tmp_path)
        with pytest.raises(Refused, match=r"^jax, torch:tuned$"):
            compare.certify(workload, ["jax", "torch:tuned"], out=tmp_path)
        with pytest.raises(Refused, match=r"^torch, jax$"):
            compare.run(workload, out=tmp_path)


def test_a_test_may_ask_for_a_pair():
    one, other = (
        comparison_request.merge(comparison_request.to_layer(each))
        for each in (PAIR, compare.pair("a:b", "c:d", image="8x8x1", classes=3))
    )
    assert one.slug.startswith("e-f-")
    assert one.key != other.key


def test_a_test_may_say_all_that_the_command_line_may() -> None:
    offered = {option.name for option in options.list_options("compare")}
    only_there = {"out", "tuning", "knobs", "parallel", *options.COMMAND_LINE}
    assert set(comparison_request.SETTINGS) == offered - only_there | {"request", "check"}


def test_a_test_may_split_batches_over_devices(tmp_path: Path) -> None:
    ways = {"contenders": ["jax:pmap", "torch:ddp"], "device": "cpu"}
    made = comparison_request.merge({**ways, "devices": 2, "batch_norm": "local"}).make_plan(tmp_path)
    assert (made.devices, made.batch_norm) == (2, "local")
    with pytest.raises(Refused, match="batch_norm 'other' is not allowed; allowed: sync, local"):
        comparison_request.merge({**ways, "batch_norm": "other"}).make_plan(tmp_path)
