"""Resolve the plan of a user's own pair: trace both models, match them layer by layer, and try each layer by itself.

User code runs in the children only.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from compare.agreement.gates import SEMANTIC
from compare.agreement.measures import compute_relative_error
from compare.base import descriptions, tensors
from compare.base.commands import Command, ListUserFiles, OwnWeights, RunLayer, TraceModel, Traces, UserFiles
from compare.base.interface import TRAIN, Arrays, ContenderFailed, MatchingFailed, Refused, RunSpec
from compare.base.task import INPUT, describe_losses
from compare.base.trace import Layer, Trace
from compare.data import dataset_file, datasets
from compare.execution import certificate_cases
from compare.execution.batch_trial import SMALLEST_BATCH
from compare.execution.child import Child
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun
from compare.settings import contenders, splitting
from compare.settings.plan import Plan
from compare.user_models import matching, outputs, weights_map
from compare.user_models.match_report import Pairing
from compare.user_models.matching import Matching


def resolve(plan: Plan, scratch: Path) -> tuple[Plan, Pairing]:
    """Return the plan with the names and weights of a user's pair, and the match of its models.

    `scratch` holds the plan's dataset. The weights are written there too.

    Raises:
        Refused: a factory or model cannot be used, a source is not the requested one, the models cannot be matched, or
            weights are not finite.
        MatchingFailed: a model, or its process, crashes, takes too long or runs out of memory.
    """
    # Models are matched in a training step, whatever the task.
    resolved, pairing = _resolve(replace(plan, task=TRAIN), scratch)
    return replace(resolved, task=plan.task), pairing


def _resolve(plan: Plan, scratch: Path) -> tuple[Plan, Pairing]:
    request = plan.request
    if contenders.is_alone(plan.workload):
        return _resolve_alone(plan, scratch)
    with _start_sides(Launcher(plan, scratch)) as sides:
        plan = replace(plan, resizable=not plan.workload.model.inputs)
        sizes = sorted({case.image_size for case in certificate_cases.make_adversarial_cases(plan) if case.image_size})
        traced = sides.trace(_make_trace_command(plan, sizes))
        plan, traced = _keep_constants(sides, plan, traced, sizes)
        traces = {backend: reply.own for backend, reply in traced.items()}
        _check_sources(plan, traces)
        splitting.check_synchronised(plan, _has_batch_norm(traces))
        plan = _complete_task(plan, traces, scratch)
        matched = matching.match(traces["torch"], _with_output_of(traces["torch"], traces["jax"]), request.weights_map)
        others = [_traces_at(traced, index) for index in range(len(sizes))]
        resized = [
            matching.match(torch, _with_output_of(torch, jax), request.weights_map)
            for torch, jax in filter(None, others)
        ]
        is_resizable = plan.resizable and len(resized) == len(sizes) and _keeps_outputs(plan, traced)
        plan = replace(plan, resizable=is_resizable)
        plan = _name_variables(plan, matched)
        different = _find_different_layers(sides, plan, matched)
        # Their modules may hold different parts of the model. What lies around them is compared nevertheless.
        apart = [t.path for t, j in matched.layers if t.path in different and _is_own(t, j)]
        plan = _name_variables(plan, matched, apart)
        # Only of the side that training starts from: flax would compile a program for the other one's weights.
        files = sides.write(plan, "weights", OwnWeights, only=request.weights_from)
        code = sides.list_user_files()
    allowed = tuple(plan.workload.model.arguments["allow"])
    pairing = Pairing(
        traces,
        matched,
        different,
        tuple(resized),
        request.weights_from,
        allowed,
        len(request.weights_map or {}),
        code,
        losses=describe_losses(plan.workload.task),
    )
    return replace(plan, weights=str(files[request.weights_from])), pairing


def _make_trace_command(plan: Plan, sizes: list[int]) -> TraceModel:
    return TraceModel(descriptions.to_json(plan.workload)["model"], SMALLEST_BATCH, sizes)


def _keep_constants(
    sides: "_Sides", plan: Plan, traced: dict[str, Traces], sizes: list[int]
) -> tuple[Plan, dict[str, Traces]]:
    """Return the plan with torch's constants, which do not cross, and the traces without them."""
    names = weights_map.find_constants(traced["torch"].own, traced["jax"].own, plan.request.weights_map or {})
    if not names:
        return plan, traced
    model = replace(plan.workload.model, arguments={**plan.workload.model.arguments, "constants": names})
    plan = replace(plan, workload=replace(plan.workload, model=model))
    return plan, traced | sides.trace(_make_trace_command(plan, sizes), only="torch")


def _resolve_alone(plan: Plan, scratch: Path) -> tuple[Plan, Pairing]:
    """Return what `resolve` returns for one model. Its tunings are compared."""
    with _start_sides(Launcher(plan, scratch)) as sides:
        plan = replace(plan, resizable=False)
        traces = {backend: reply.own for backend, reply in sides.trace(_make_trace_command(plan, [])).items()}
        ((backend, trace),) = traces.items()
        _check_sources(plan, traces)
        splitting.check_synchronised(plan, _has_batch_norm(traces))
        plan = _complete_task(plan, traces, scratch)
        matched = matching.match_itself(trace)
        plan = _name_variables(plan, matched, ())
        files = sides.write(plan, "weights", OwnWeights)
        code = sides.list_user_files()
    return replace(plan, weights=str(files[backend])), Pairing(
        traces, matched, weights_from=backend, code=code, losses=describe_losses(plan.workload.task)
    )


class _Sides:
    """A child of each backend. Both get the same commands at the same time."""

    def __init__(self, launcher: Launcher, runs: Mapping[str, ContenderRun], children: Mapping[str, Child]) -> None:
        self._launcher, self._runs, self._children = launcher, runs, children

    def trace(self, command: TraceModel, only: str | None = None) -> dict[str, Traces]:
        """Return the traces of both models by backend, or of one `only`."""
        return self._call({backend: command for backend in self._children if only in (None, backend)})

    def list_user_files(self) -> dict[str, UserFiles]:
        """Return the user's files behind both models by backend."""
        return self._call(dict.fromkeys(self._children, ListUserFiles()))

    def write(
        self, plan: Plan, name: str, command: Callable[[RunSpec, str], Command[Any]], only: str | None = None
    ) -> dict[str, Path]:
        """Have both sides, or one `only`, write arrays to files, and return the paths by backend.

        The models of the plan run in float64 with the smallest batch.
        """
        paths = {backend: self._launcher.scratch / f"{name}-{backend}" for backend in self._children}
        changes: dict[str, Any] = {"precision": "float64", "batch_size": SMALLEST_BATCH, "accumulate": 1}
        dataset = self._launcher.dataset
        self._call(
            {
                backend: command(plan.spec(self._runs[backend].contender, dataset, **changes), str(path))
                for backend, path in paths.items()
                if only in (None, backend)
            }
        )
        return paths

    def _call(self, calls: Mapping[str, Command[Any]]) -> dict[str, Any]:
        for backend, command in calls.items():
            self._attempt(backend, partial(self._children[backend].send, command))
        return {
            backend: self._attempt(backend, partial(self._children[backend].reply, command))
            for backend, command in calls.items()
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
def _start_sides(launcher: Launcher) -> Generator[_Sides]:
    plain = contenders.parse(contenders.choose_plain_contenders(launcher.plan.workload), least=1)
    runs = {each.backend: ContenderRun(each) for each in plain}
    children: dict[str, Child] = {}
    try:
        for backend, run in runs.items():
            children[backend] = launcher.start(run, purpose="matching", beside=len(runs) - 1)
        for child in children.values():
            child.greet()
        yield _Sides(launcher, runs, children)
    except ContenderFailed as failure:
        raise MatchingFailed(f"the pair could not be traced: {failure}") from failure
    finally:
        for child in children.values():
            child.close()


def _check_sources(plan: Plan, traces: Mapping[str, Trace]) -> None:
    for backend, stored in (plan.request.sources or {}).items():
        current = traces[backend].source_sha256
        if current != stored:
            raise Refused(
                f"the {backend} model's source has changed: {plan.workload.model.arguments[backend]} has SHA-256 "
                f"{current}, stored is {stored}; allowed: the source that made the result, or --changed-code"
            )


def _has_batch_norm(traces: Mapping[str, Trace]) -> bool:
    return any(layer.role == "batch-norm" for trace in traces.values() for layer in trace.layers)


def _complete_task(plan: Plan, traces: Mapping[str, Trace], scratch: Path) -> Plan:
    """Return the plan with the outputs of the models in its task. Write the dataset again if they need other targets.

    Raises:
        Refused: the outputs do not fit each other or their losses.
    """
    workload = outputs.complete(plan.workload, traces)
    if workload == plan.workload and (workload.task is None or plan.dataset.train.labels.size):
        return plan
    dataset = datasets.load(workload, folder=None, seed=plan.seed, batch_size=plan.batch_size)
    dataset_file.save(dataset, Launcher(plan, scratch).dataset)
    return replace(plan, workload=workload, dataset=dataset)


def _with_output_of(torch: Trace, jax: Trace) -> Trace:
    """Return JAX's trace with torch's shape of the first output, whose layouts were compared before."""
    return replace(jax, output=torch.output)


def _keeps_outputs(plan: Plan, traced: Mapping[str, Traces]) -> bool:
    """Tell whether the targets of a task have the same shape at all image sizes. A target that is the input has not."""
    task = plan.workload.task
    if task is None:
        return True
    sizes = [model.outputs for traces in traced.values() for model in traces.resized if model is not None]
    shapes = [traces.own.outputs for traces in traced.values()]
    return all(resized in shapes for resized in sizes) and all(each.target != INPUT for each in task.with_targets)


def _traces_at(traced: Mapping[str, Traces], index: int) -> tuple[Trace, Trace] | None:
    """Return torch's and flax's trace at another size, or None unless both take it with the same variables."""

    def variables(model: Trace) -> list[Any]:
        return [layer.variables for layer in model.layers]

    resized = {backend: traces.resized[index] for backend, traces in traced.items()}
    for backend, model in resized.items():
        if model is None or variables(model) != variables(traced[backend].own):
            return None
    torch, jax = resized["torch"], resized["jax"]
    return None if torch is None or jax is None else (torch, jax)


def _is_own(torch: Layer, jax: Layer) -> bool:
    """Tell whether a class of the user's own stands on either side, recognised by what it does."""
    return any(layer.role == "parameters" or layer.input_layout.axes for layer in (torch, jax))


def _name_variables(plan: Plan, matched: Matching, apart: Sequence[str] = ()) -> Plan:
    """Return the plan with the names of a matching in its model, without the activations of the layers `apart`."""
    names = {backend: each.to_json() for backend, each in matched.names(apart).items()}
    model = replace(plan.workload.model, arguments={**plan.workload.model.arguments, "names": names})
    return replace(plan, workload=replace(plan.workload, model=model))


def _find_different_layers(sides: _Sides, plan: Plan, matched: Matching) -> dict[str, float | None]:
    """Return the relative error of every layer that computes something else by itself. None is another shape.

    Layers that are alike in both models are tried once, because a deep model has many layers of a few kinds.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    inputs: dict[str, list[int]] = {}
    for pair in matched.layers:
        if _runs_alone(*pair):
            kinds[repr([_describe_kind(layer) for layer in pair])].append(pair[0].path)
            inputs[pair[0].path] = list(pair[0].input)
    first_of_kind = {path: inputs[path] for path, *_ in kinds.values()}
    files = sides.write(plan, "layers", lambda spec, path: RunLayer(spec, path, first_of_kind))
    arrays: dict[str, Arrays] = {backend: tensors.load(path) for backend, path in files.items()}
    different: dict[str, float | None] = {}
    for paths in kinds.values():
        names = [f"{mode}/{paths[0]}" for mode in ("training", "evaluation")]
        if any(name not in side for side in arrays.values() for name in names):
            different |= dict.fromkeys(paths, None)
            continue
        pairs = [(arrays["jax"][name], arrays["torch"][name]) for name in names]
        if any(a.shape != b.shape for a, b in pairs):
            different |= dict.fromkeys(paths, None)
        elif (error := max(compute_relative_error(a, b) for a, b in pairs)) > SEMANTIC.limit:
            different |= dict.fromkeys(paths, error)
    return {path: different[path] for path in inputs if path in different}


def _runs_alone(torch: Layer, jax: Layer) -> bool:
    """Tell whether both layers are modules that hold the same and can be tried on an input of their own."""
    is_first = "#" not in torch.path and torch.role != "embedding"
    return is_first and torch.is_module and jax.is_module and torch.inside == jax.inside == 0 and bool(torch.input)


def _describe_kind(layer: Layer) -> list[Any]:
    shapes = [(variable.role, variable.shape) for variable in layer.variables]
    return [layer.role, shapes, sorted(layer.settings.items()), sorted(layer.written.items()), layer.input]
