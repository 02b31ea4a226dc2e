"""A user's own pair made ready for a run: both models traced, matched layer by layer, each layer tried by itself.

User code runs in the children only.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from compare.agreement.gates import SEMANTIC
from compare.agreement.measures import relative_error
from compare.base import descriptions, tensors, trace
from compare.base.interface import Arrays, ContenderFailed, MatchingFailed, Refused
from compare.base.trace import Layer, Trace
from compare.execution import certificate_cases
from compare.execution.child import Child
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun
from compare.settings import contenders
from compare.settings.plan import Plan
from compare.user_models import flattening, matching
from compare.user_models.match_report import Pairing
from compare.user_models.matching import Matching

_BATCH = 2


def prepare(launcher: Launcher) -> Pairing:
    """Trace and match the models of the launcher's plan, and give the plan the names and weights found.

    Raises:
        Refused: a factory or model that cannot be used, a source other than asked for, models that cannot be matched,
            weights that are not finite.
        MatchingFailed: a model, or the process that it is in, crashes, takes too long or runs out of memory.
    """
    plan, model, request = launcher.plan, launcher.plan.workload.model, launcher.plan.request
    with _children(launcher) as sides:
        sizes = sorted(
            {case.image_size for case in certificate_cases.adversarial_cases(plan) if case.image_size is not None}
        )
        traced = sides.ask("trace", model=descriptions.to_json(plan.workload)["model"], batch_size=_BATCH, sizes=sizes)
        traces = {backend: trace.from_json(each["own"]) for backend, each in traced.items()}
        _check_sources(plan, traces)
        _check_outputs(plan, traces)
        matched = matching.match(traces["torch"], traces["jax"], request.weights_map)
        others = [_resized(traced, traces, index) for index in range(len(sizes))]
        resized = [matching.match(*each, request.weights_map) for each in others if each]
        resizable = len(resized) == len(sizes)
        _named(launcher, matched, {}, resizable=resizable)
        _named(launcher, matched, _flattened(sides, matched), resizable=resizable)
        different = _alone(sides, matched)
        # Of the side that training does not start from, nobody reads them, and flax would compile a program for them.
        files = sides.write("own_weights", "weights", only=request.weights_from)
    launcher.plan = replace(launcher.plan, weights=str(files[request.weights_from]))
    allowed = tuple(model.arguments["allow"])
    return Pairing(
        traces, matched, different, tuple(resized), request.weights_from, allowed, len(request.weights_map or {})
    )


class _Sides:
    """A child of each backend, asked the same at the same time."""

    def __init__(self, launcher: Launcher, runs: Mapping[str, ContenderRun], children: Mapping[str, Child]) -> None:
        self._launcher, self._runs, self._children = launcher, runs, children

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Return both answers by backend."""
        return self._each(command, dict.fromkeys(self._children, arguments))

    def write(self, command: str, name: str, only: str | None = None, **arguments: Any) -> dict[str, Path]:
        """Have both, or one only, write arrays to files, in float64 at the least batch; return paths by backend."""
        sides = [only] if only else list(self._children)
        paths = {backend: self._launcher.scratch / f"{name}-{backend}" for backend in sides}
        changes: dict[str, Any] = {"precision": "float64", "batch_size": _BATCH, "accumulate": 1}
        self._each(
            command,
            {
                backend: {
                    "spec": self._launcher.spec(self._runs[backend], **changes),
                    "path": str(path),
                    **arguments,
                }
                for backend, path in paths.items()
            },
        )
        return paths

    def _each(self, command: str, arguments: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        deadline = self._launcher.plan.deadlines["record"]
        for backend, given in arguments.items():
            self._attempt(backend, partial(self._children[backend].send, command, **given))
        return {
            backend: self._attempt(backend, partial(self._children[backend].reply, command, deadline))
            for backend in arguments
        }

    def _attempt(self, backend: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except ContenderFailed as failure:
            refused = failure.status == "refused"
            reason = failure.reason.partition(": ")[2] if refused else str(failure)
            is_input = refused or (failure.status == "crash" and failure.raised)
            raise (Refused if is_input else MatchingFailed)(f"the {backend} model: {reason}") from failure


@contextmanager
def _children(launcher: Launcher) -> Generator[_Sides]:
    runs = {each.backend: ContenderRun(each) for each in contenders.parse(contenders.PLAIN_CONTENDERS)}
    children: dict[str, Child] = {}
    try:
        for backend, run in runs.items():
            children[backend] = launcher.start(run, purpose="matching", beside=len(runs) - 1)
        for child in children.values():
            child.greet(launcher.plan.deadlines["start"])
        yield _Sides(launcher, runs, children)
    except ContenderFailed as failure:
        raise MatchingFailed(f"the pair could not be traced: {failure}") from failure
    finally:
        for child in children.values():
            child.close()


def _check_sources(plan: Plan, traces: Mapping[str, Trace]) -> None:
    for backend, wanted in (plan.request.sources or {}).items():
        found = traces[backend].source_sha256
        if found != wanted:
            raise Refused(
                f"the {backend} model's source has changed: {plan.workload.model.arguments[backend]} has SHA-256 "
                f"{found}, stored is {wanted}; allowed: the source that made the result, or --changed-code"
            )


def _check_outputs(plan: Plan, traces: Mapping[str, Trace]) -> None:
    wanted = (_BATCH, plan.workload.model.classes)
    for backend, traced in traces.items():
        if traced.output != wanted:
            reference = plan.workload.model.arguments[backend]
            raise Refused(
                f"{reference}: returns {_shape(traced.output)} for {_BATCH} images; allowed: {_shape(wanted)}, "
                "one number a class (--classes)"
            )


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _resized(traced: Mapping[str, Any], native: Mapping[str, Trace], index: int) -> tuple[Trace, Trace] | None:
    """Return torch's and flax's trace at another size, None unless both take it with the very same variables."""

    def variables(each: Trace) -> list[Any]:
        return [layer.variables for layer in each.layers]

    answers = {backend: answer["resized"][index] for backend, answer in traced.items()}
    if any(answer is None for answer in answers.values()):
        return None
    found = {backend: trace.from_json(answer) for backend, answer in answers.items()}
    if any(variables(each) != variables(native[backend]) for backend, each in found.items()):
        return None
    return found["torch"], found["jax"]


def _named(launcher: Launcher, matched: Matching, flattened: Mapping[str, int], *, resizable: bool) -> None:
    """Give the plan's model the names of a matching."""
    plan = launcher.plan
    names = {backend: each.to_json() for backend, each in matched.names(flattened).items()}
    model = replace(plan.workload.model, arguments={**plan.workload.model.arguments, "names": names})
    launcher.plan = replace(plan, workload=replace(plan.workload, model=model), resizable=resizable)


def _flattened(sides: _Sides, matched: Matching) -> dict[str, int]:
    """Return by torch's path the channels of every dense layer that torch flattens channels first and flax last."""
    outputs = {layer.path: layer.output for layer, _ in matched.layers}
    layers = [layer for layer, _ in matched.layers if _may_flatten(layer, outputs)]
    if not layers:
        return {}
    files = sides.write("record", "inputs", steps=1)
    inputs = {backend: tensors.load(path / "step1") for backend, path in files.items()}
    found: dict[str, int] = {}
    for layer in layers:
        key = f"step1/activation/{layer.path}.input"
        channels = flattening.find_channels(inputs["torch"][key], inputs["jax"][key])
        if channels is not None:
            found[layer.path] = channels
    return found


def _may_flatten(layer: Layer, outputs: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a dense layer's inputs are the pixels of images; `outputs` are all layers' shapes."""
    if layer.role != "dense" or len(layer.input) != 2:
        return False
    shapes = [outputs.get(path, ()) for path in layer.after]
    return any(len(shape) == 4 and shape[-1] != layer.input[-1] for shape in shapes) or trace.IMAGES in layer.after


def _alone(sides: _Sides, matched: Matching) -> dict[str, float | None]:
    """Return the layers that by themselves do not compute the same, and how far they are off (None: another shape).

    Of layers that are alike in both models, one is tried for all: a deep model has many of few kinds.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    inputs: dict[str, list[int]] = {}
    for pair in matched.layers:
        if _runs_alone(pair[0]):
            kinds[repr([_kind(each) for each in pair])].append(pair[0].path)
            inputs[pair[0].path] = list(pair[0].input)
    tried = {path: inputs[path] for path, *_ in kinds.values()}
    files = sides.write("run_layer", "alone", inputs=tried)
    arrays: dict[str, Arrays] = {backend: tensors.load(path) for backend, path in files.items()}
    found: dict[str, float | None] = {}
    for paths in kinds.values():
        modes = [f"{mode}/{paths[0]}" for mode in ("training", "evaluation")]
        pairs = [(arrays["jax"][name], arrays["torch"][name]) for name in modes]
        if any(a.shape != b.shape for a, b in pairs):
            found |= dict.fromkeys(paths, None)
        elif (error := max(relative_error(a, b) for a, b in pairs)) > SEMANTIC.limit:
            found |= dict.fromkeys(paths, error)
    return {path: found[path] for path in inputs if path in found}


def _runs_alone(layer: Layer) -> bool:
    return "#" not in layer.path and layer.role not in ("embedding", "parameters")


def _kind(layer: Layer) -> list[Any]:
    shapes = [(each.role, each.shape) for each in layer.variables]
    return [layer.role, shapes, sorted(layer.settings.items()), sorted(layer.written.items()), layer.input]
