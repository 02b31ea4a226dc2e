"""Find which output of a torch model is which of its JAX port, and complete the pair's task with their shapes."""

from collections.abc import Mapping
from dataclasses import replace

from compare.base import task
from compare.base.interface import Refused
from compare.base.task import Output, Task
from compare.base.trace import Trace
from compare.base.workloads import Workload

_Shape = tuple[int, ...]


def complete(workload: Workload, traces: Mapping[str, Trace]) -> Workload:
    """Return the workload of a pair with the outputs that its traces show.

    One output [N, classes] and plain cross-entropy need no task.

    Raises:
        Refused: the models return other outputs than each other, or than their losses need.
    """
    traces = _add_missing_side(workload, traces)
    torch, jax = traces["torch"], traces["jax"]
    pairs = _pair_outputs(torch, jax)
    if workload.task is None and len(pairs) == 1 and torch.output == jax.output and len(torch.output) == 2:
        _check_classes(pairs[0][1], jax.output[1:], workload.model.classes)
        return workload
    asked = Task((Output(label_smoothing=workload.label_smoothing),)) if workload.task is None else workload.task
    outputs = [_complete_output(asked, workload, *pair, traces) for pair in pairs]
    known = {name for pair in pairs for name in pair}
    for output in asked.outputs:
        if output.name and output.name not in known:
            raise Refused(f"--loss {output.name}=...: no output has that name; there are: {', '.join(sorted(known))}")
    if all(output.loss == task.NO_LOSS for output in outputs):
        raise Refused("--loss: no output has a loss; allowed: a loss for at least one output")
    return replace(workload, task=Task(tuple(outputs)))


def _add_missing_side(workload: Workload, traces: Mapping[str, Trace]) -> Mapping[str, Trace]:
    """Return both traces. For one model alone, the other has its outputs in the usual layout."""
    if len(traces) > 1:
        return traces
    ((backend, trace),) = traces.items()
    images = max((len(each.shape) for each in workload.model.inputs if each.is_channels_first), default=0)
    ranks = (4, 5, images + 1)
    neutral = {
        name: (shape[0], *shape[2:], shape[1]) if backend == "torch" and len(shape) in ranks else shape
        for name, shape in trace.outputs.items()
    }
    return {"torch": trace, "jax": replace(trace, outputs=neutral)}


def _pair_outputs(torch: Trace, jax: Trace) -> list[tuple[str, str]]:
    """Return the names of outputs of the same meaning: by name if all names are equal, otherwise in order."""
    if set(torch.outputs) == set(jax.outputs):
        return [(name, name) for name in torch.outputs]
    if len(torch.outputs) != len(jax.outputs):
        raise Refused(
            f"the models return different outputs: torch {_describe(torch)}, flax {_describe(jax)}; allowed: the same "
            "number of outputs in the same order, or with the same names"
        )
    return list(zip(torch.outputs, jax.outputs, strict=True))


def _complete_output(asked: Task, workload: Workload, torch: str, jax: str, traces: Mapping[str, Trace]) -> Output:
    own, neutral = traces["torch"].outputs[torch], traces["jax"].outputs[jax]
    chosen = _choose_loss(asked, torch, jax, is_first=torch == next(iter(traces["torch"].outputs)))
    is_channels_first = _find_layout(own, neutral, workload, torch or jax)
    if chosen.loss == task.CROSS_ENTROPY and not chosen.name:
        _check_classes(torch, neutral[1:], workload.model.classes)
    chosen = replace(chosen, name=torch, jax=jax, shape=neutral[1:], is_channels_first=is_channels_first)
    if chosen.target == task.INPUT:
        _check_reconstruction(chosen, workload)
    return chosen


def _choose_loss(asked: Task, torch: str, jax: str, *, is_first: bool) -> Output:
    """Return the loss that the user gave an output by name, or the only loss, which all outputs then have."""
    named = next((output for output in asked.outputs if output.name and output.name in (torch, jax)), None)
    if named is not None:
        return named
    plain = next((output for output in asked.outputs if not output.name), None)
    if plain is None or (plain.loss == task.OWN_LOSS and not is_first):
        return Output(loss=task.NO_LOSS)
    return plain


def _find_layout(own: _Shape, neutral: _Shape, workload: Workload, name: str) -> bool:
    """Tell whether torch's output [N, C, ...] has its channels first, where JAX has [N, ..., C].

    Raises:
        Refused: the two shapes are no layouts of one output.
    """
    turned = (own[0], *own[2:], own[1]) if len(own) > 2 else own
    if own != neutral and turned != neutral:
        is_same_column = _without_ones(own) == _without_ones(neutral)
        if is_same_column and len(own) <= 2 and len(neutral) <= 2:
            return False  # [N] and [N, 1]
        raise Refused(
            f"output {name or 'of the models'}: torch returns {list(own)} and flax {list(neutral)}, examples first; "
            "allowed: the same shape, or channels first in torch and last in flax"
        )
    if own == neutral and turned == neutral and len(own) > 2:  # the sizes do not tell
        images = max((len(each.shape) for each in workload.model.inputs if each.is_channels_first), default=0)
        return len(own) - 1 == (images or len(workload.model.image))
    return turned == neutral and len(own) > 2


def _check_classes(name: str, shape: _Shape, classes: int) -> None:
    if shape and shape[-1] == classes:
        return
    fitting = f"--classes {shape[-1]}" if shape and shape[-1] > 1 else "--loss bce without --classes for one logit"
    raise Refused(
        f"--classes {classes}: the output {f'{name} ' if name else ''}is {list(shape)} for each example, and "
        f"cross-entropy needs one number a class as the last axis in flax; allowed: {fitting}, or another --loss, such "
        "as mse"
    )


def _check_reconstruction(output: Output, workload: Workload) -> None:
    real = [each.shape for each in workload.model.inputs if each.below is None]
    shape = real[0] if workload.model.inputs and real else workload.model.image
    if output.shape != shape:
        raise Refused(
            f"output {output.name or 'of the models'}: {list(output.shape or ())} for each example, and the input is "
            f"{list(shape)}; allowed with target=input: outputs of the input's shape"
        )


def _without_ones(shape: _Shape) -> _Shape:
    return tuple(size for size in shape if size != 1)


def _describe(trace: Trace) -> str:
    return ", ".join(f"{name} {list(shape)}".strip() for name, shape in trace.outputs.items())
