"""What each task takes: a training step or a request, which is a forward pass in evaluation mode."""

from compare.base.interface import INFER, Refused
from compare.base.workloads import Workload
from compare.settings.kinds import Wholes
from compare.settings.options import SETTINGS, Settings

DEFAULT_BATCH_SIZES = (1, 32)
"""One image shows latency, and 32 show throughput."""

_OF_TRAINING = ("accumulate", "devices", "search_anew", "parallel")
"""Settings that change nothing of a request."""


def list_settings_of_other_task(task: str) -> tuple[str, ...]:
    """Return the settings that a task does not have."""
    return (*_OF_TRAINING, "epochs") if task == INFER else ("batch_sizes",)


def choose_batch_sizes(settings: Settings, workload: Workload) -> tuple[int, ...] | None:
    """Return the images of each kind of request, smallest first, or None for training.

    The `spec` of a stored result also has the workload's epochs and the largest batch, which are allowed.

    Raises:
        Refused: a setting is for the other task, by its flag.
    """
    if settings.task != INFER:
        if settings.batch_sizes is not None:
            raise Refused("--batch-sizes needs --task infer; allowed for training: --batch-size N")
        return None
    unlike = [name for name in _OF_TRAINING if getattr(settings, name) != SETTINGS[name].default]
    if settings.epochs not in (None, workload.epochs):
        unlike.append("epochs")
    if unlike:
        flag = SETTINGS[unlike[0]].flag
        raise Refused(f"{flag} is for --task train; leave it out, or use --task train")
    if settings.batch_sizes is None:
        return DEFAULT_BATCH_SIZES if settings.batch_size is None else (settings.batch_size,)
    batch_sizes = Wholes().read(settings.batch_sizes)
    if settings.batch_size not in (None, max(batch_sizes)):
        raise Refused("--batch-size and --batch-sizes exclude each other; allowed: one of them")
    return batch_sizes


def refuse_inference(settings: Settings, command: str) -> None:
    """Check that a command which only trains is not asked for requests.

    Raises:
        Refused: it is, with the command's name.
    """
    if settings.task == INFER:
        raise Refused(f"samestep {command} has no --task infer; allowed: --task train, or samestep compare")
