"""Prove that a contender did the work that was timed, and that it still trains as it did before."""

from compare.base.commands import ProveWork, Restart, WorkProof
from compare.base.interface import INFER
from compare.execution import reproducibility
from compare.execution.child import Child
from compare.execution.run_state import ContenderRun
from compare.settings.plan import Plan

_MOST_UNWAITED = 0.25
"""The largest part of a block that may be unfinished when `wait` returns. The exports that show it vary, too."""
_TRIES = 3
"""Unfinished work shows in every try, but a large export sometimes takes longer (resnet50's by 57 ms). Likewise a
contender that changed differs in every try, and one that only rounds may differ in one."""


def prove(plan: Plan, child: Child, run: ContenderRun, steps: int | None = None) -> None:
    """Set `run.unproven` to the reason why the timed work does not count, if there is one.

    `steps` is the length of a timed block if the contender has several.
    """
    prove_work(plan, child, run, steps)
    prove_start(plan, child, run)


def prove_work(plan: Plan, child: Child, run: ContenderRun, steps: int | None = None) -> None:
    """Prove that the steps of a block were trained, and that `wait` waits for them. No other child may work."""
    command = ProveWork((run.steps_per_block or 0) if steps is None else steps)
    proofs = [child.call(command)]
    while proofs[-1].unwaited_share > _MOST_UNWAITED and len(proofs) < _TRIES:
        proofs.append(child.call(command))
    least = min(proofs, key=lambda proof: proof.unwaited_share)
    missing = next(
        (fault for fault in (_describe_missing_work(plan, proof) for proof in proofs) if fault is not None), None
    )
    if missing is not None:
        run.unproven = missing
    elif least.unwaited_share > _MOST_UNWAITED:
        run.unproven = (
            f"after wait() returned, {1e3 * least.unwaited_seconds:.3g} ms of a block's work were still to be done "
            f"({1e3 * least.block_seconds:.3g} ms had been timed)"
        )


def prove_start(plan: Plan, child: Child, run: ContenderRun) -> None:
    """Prove that the first steps have the same losses and weights again, for work that is proven so far."""
    run.unproven = run.unproven or _describe_change(plan, child)


def _describe_change(plan: Plan, child: Child) -> str | None:
    """Describe how training changed after the timed blocks, if it differs in every try."""
    change = None
    for _ in range(_TRIES):
        change = reproducibility.describe_change(child.call(Restart()), plan.precision, plan.task)
        if change is None:
            break
    return change


def _describe_missing_work(plan: Plan, proof: WorkProof) -> str | None:
    """Describe steps that were not trained, or that had a loss that was not finite."""
    if proof.exported != proof.dispatched:
        work, done = ("requests", "answered") if plan.task == INFER else ("steps", "trained")
        return f"{proof.dispatched} {work} were dispatched but {proof.exported} {done}"
    if proof.not_finite is not None:
        return f"the loss was not finite at step {proof.not_finite} of a timed round"
    return None
