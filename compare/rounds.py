"""Timed rounds: fresh processes, all alive together, one working at a time, and proof that the work was done."""

from collections.abc import Callable, Mapping

from compare.child import Child
from compare.interface import ContenderFailed
from compare.launcher import Launcher, Outcome
from compare.measure.order import palindromic
from compare.plan import Plan

BLOCK_SECONDS: Mapping[str, float] = {"cpu": 0.02, "cuda": 0.1}
_PALINDROMES = 3


def time_round(launcher: Launcher, alive: list[Outcome]) -> None:
    """Time one round: fresh processes, all alive together, one working at a time, blocks in palindromic order."""
    plan, children = launcher.plan, dict[str, Child]()
    try:
        for outcome in alive:
            _attempt(outcome, lambda o: children.update({o.contender.name: launcher.started(o, purpose="round")}))
        for outcome in alive:
            if outcome.status == "ok":
                _attempt(outcome, lambda o: _open(launcher, children[o.contender.name], o))
        for outcome in alive:
            if outcome.status == "ok":
                _attempt(outcome, lambda o: children[o.contender.name].reply("open", plan.deadlines["open"]))
        for outcome in alive:
            if outcome.status == "ok":
                _attempt(outcome, lambda o: _warm_up(plan, children[o.contender.name], o))
        timed = [outcome for outcome in alive if outcome.status == "ok"]
        blocks: dict[str, list[float]] = {outcome.contender.name: [] for outcome in timed}
        for index in palindromic(len(timed), _PALINDROMES):
            if timed[index].status == "ok":
                _attempt(timed[index], lambda o: blocks[o.contender.name].append(_block(plan, children, o)))
        for outcome in timed:
            if outcome.status == "ok":
                outcome.samples.append(blocks[outcome.contender.name])
                _attempt(outcome, lambda o: _prove(plan, children[o.contender.name], o))
    finally:
        for child in children.values():
            child.close()


def _attempt(outcome: Outcome, action: Callable[[Outcome], object]) -> None:
    try:
        action(outcome)
    except ContenderFailed as failure:
        outcome.status, outcome.reason = failure.status, f"timed rounds: {failure.reason}"


def _open(launcher: Launcher, child: Child, outcome: Outcome) -> None:
    child.greet(launcher.plan.deadlines["start"])
    child.send("open", spec=launcher.spec(outcome))


def _warm_up(plan: Plan, child: Child, outcome: Outcome) -> None:
    seconds, steps = BLOCK_SECONDS[plan.device], outcome.steps_per_block
    warm = child.call("warm_up", plan.deadlines["warm_up"], block_seconds=seconds, steps=steps)
    outcome.steps_per_block = warm["steps_per_block"]
    trained = outcome.start
    if trained is not None and warm["first_losses"] != trained["first_losses"]:
        outcome.unproven = outcome.unproven or _loss_difference(
            warm["first_losses"], trained["first_losses"], plan.precision
        )


def _block(plan: Plan, children: dict[str, Child], outcome: Outcome) -> float:
    steps = outcome.steps_per_block
    assert steps is not None  # set by _warm_up
    return children[outcome.contender.name].call("block", plan.deadlines["block"], steps=steps) / steps


def _prove(plan: Plan, child: Child, outcome: Outcome) -> None:
    proof = child.call("proof", plan.deadlines["block"])
    if proof["exported"] != proof["dispatched"]:
        outcome.unproven = f"{proof['dispatched']} steps were dispatched but {proof['exported']} trained"
    elif proof["last_loss"] is None:
        outcome.unproven = "the loss was not finite at the end of a timed round"


# Largest relative difference between one program's own losses over the first steps of two launches: kernel autotuning
# and atomics change the order of summation, nothing else.
_REPEATED_LOSS: Mapping[str, float] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "tf32": 1e-2,
    "bfloat16": 5e-2,
    "float16": 1e-2,
}


def _loss_difference(timed: list[float | None], trained: list[float | None], precision: str) -> str | None:
    for step, (a, b) in enumerate(zip(timed, trained, strict=True), start=1):
        if a is None or b is None or abs(a - b) > _REPEATED_LOSS[precision] * max(abs(b), 1e-6):
            return f"the loss at step {step} of a timed round is {a}, in the training run it is {b}"
    return None
