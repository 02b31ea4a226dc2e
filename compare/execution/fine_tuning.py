"""Train the full model of a pruned workload, so that pruning chooses among trained channels.

Both sides then start from its weights without the removed channels, and their training runs are the fine-tuning.
"""

from dataclasses import replace
from pathlib import Path

from compare.base import descriptions, tensors
from compare.base.commands import TrainModel
from compare.base.errors import ContenderFailed, MatchingFailed
from compare.data import pruning, weights
from compare.execution.launcher import Launcher, Progress
from compare.execution.run_state import ContenderRun, FullTraining
from compare.settings.plan import Plan


def train_full_model(plan: Plan, scratch: Path, progress: Progress) -> tuple[Plan, FullTraining]:
    """Train the full model with the baseline, and return the plan with its weights without the removed channels.

    `scratch` holds the plan's dataset, and gets the weights.

    Raises:
        MatchingFailed: the baseline fails.
    """
    progress("train the full model", 0, 1)
    launcher, model = Launcher(plan, scratch), plan.workload.model
    run, path = ContenderRun(plan.contenders[0]), scratch / "full-model.safetensors"
    full = replace(plan.workload, model=pruning.full(model))
    spec = launcher.spec(run, described=descriptions.to_json(full), epochs=plan.epochs)
    child = None
    try:
        child = launcher.start(run, purpose="full model")
        child.greet()
        result = child.call(TrainModel(spec, str(path)))
    except ContenderFailed as failure:
        raise MatchingFailed(f"the full model could not be trained: {failure}") from failure
    finally:
        if child is not None:
            child.close()
        launcher.ready.close()
    values = weights.load(str(path))
    cut = pruning.cut(model, values, pruning.choose_channels(model, values))
    path.unlink()
    pruned = scratch / "pruned-model.safetensors"
    tensors.save(cut, pruned)
    return replace(plan, weights=str(pruned)), FullTraining(run.contender.name, result)
