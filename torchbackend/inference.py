"""One model that answers requests with PyTorch: forward passes in evaluation mode (`compare.base.requests`)."""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.backends import cudnn
from torch.nn.modules.conv import _ConvNd

from compare.base import descriptions
from compare.base.interface import INFER, Array, Arrays, Batch, Kernel, Memory, Refused, RunSpec, State
from compare.base.names import Names
from compare.base.requests import Answers
from compare.base.workloads import PAIR, ModelSpec
from compare.data import weights
from torchbackend import (
    activations,
    layout,
    memory,
    models,
    parallel,
    pixels,
    precision,
    profile,
    resources,
    roles,
    tuning,
    user_models,
)
from torchbackend.only import folded_modules, model_checks, packages, programs, recorded_layers
from torchbackend.only.memory_order import to_channels_last

Program = Callable[[torch.Tensor], torch.Tensor]
"""Takes images and returns logits."""


class InferenceSession:
    """`compare.base.requests.InferenceSession` in PyTorch.

    The weights stay on the host as they were assigned. The device has them as requests read them: folded if the knobs
    say so, and those of convolutions and dense layers in the compute dtype.
    """

    task = INFER
    steps_per_dispatch = 1

    def __init__(self, spec: RunSpec) -> None:
        workload = descriptions.read_workload(spec)
        self._spec, self._knobs = spec, spec.knobs
        self._policy = precision.policy(spec.precision, spec.device)
        self._device = parallel.device(spec.device)
        self._is_own = workload.model.family == PAIR
        memory.limit(self._device, spec.memory_limit_bytes)
        torch.compiler.reset()  # an earlier session's programs count towards the limit of recompilations
        counters.clear()
        torch.use_deterministic_algorithms(spec.deterministic)
        cudnn.deterministic = spec.deterministic
        self._assigned, self._table = self._make_model(workload.model.resized(spec.image_size))
        self._signature = layout.signature(self._table)
        # Torch can write no trace of some users' code or with weights as constants. torch.export traces a package.
        holds_weights = spec.knobs["exported"] or spec.knobs["constant-weights"]
        keeps_traces = spec.keeps_traces and not (self._is_own or holds_weights)
        tuning.prepare(spec.knobs, spec.device, exchanges=False, keeps_traces=keeps_traces)
        if spec.device == "cpu" and self._policy.compute_dtype == torch.float64:
            inductor.freezing = False  # it packs weights for oneDNN, which has no float64, and fails
        self._leaves = layout.leaves(self._assigned, self._table)
        self._model: nn.Module | None = None
        self._compiled: Program | None = None
        self._programs: dict[tuple[int, ...], Program] = {}
        self._was_there: dict[tuple[int, ...], bool] = {}
        self._digest, self._is_warm, self._frozen = "", False, programs.count_frozen()
        self._inspected: Callable[..., Any] | None = None
        self._pool: list[torch.Tensor] = []
        self._graphs: list[tuple[torch.cuda.CUDAGraph, torch.Tensor]] = []
        self._position = 0
        self._answers = Answers(self._fetch)

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.base.interface.Session`."""
        return self._signature

    def assign(self, arrays: Arrays) -> None:
        """See `compare.base.interface.Session`."""
        layout.assign(self._leaves, arrays)
        if self._knobs["exported"] and self._digest != (digest := weights.digest(arrays)):
            self._digest, self._programs, self._is_warm = digest, {}, False  # a package holds its weights
        prepared = self._prepare()
        if self._model is None:
            self._model = prepared
        else:  # in place, because programs hold these tensors
            with torch.no_grad():
                for old, new in zip(_tensors(self._model), _tensors(prepared), strict=True):
                    old.copy_(new)
            if self._knobs["constant-weights"]:  # programs hold copies of the former weights
                torch.compiler.reset()
                self._compiled, self._programs, self._inspected = None, {}, None
                self._graphs, self._is_warm, self._frozen = [], False, programs.count_frozen()
        self._answers.reset()

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.base.interface.Session`."""
        if len({batch.form for batch in batches}) > 1:
            raise ValueError("a session takes batches of one size")
        pool = [self._place(batch.values()) for batch in batches]
        if self._is_warm and [each.shape for each in pool] == [each.shape for each in self._pool]:
            for old, new in zip(self._pool, pool, strict=True):
                old.copy_(new)
        else:
            self._graphs, self._pool, self._is_warm = [], pool, False
        self._position = 0
        self._answers.feed([batch.labels for batch in batches])

    def run(self, steps: int) -> None:
        """See `compare.base.interface.Session`."""
        if not self._is_warm:
            self._warm_up()
        if self._graphs or self._knobs["exported"]:  # neither reads torch's switches again
            self._answer_in_turn(steps)
        else:
            with self._scope():
                self._answer_in_turn(steps)

    def wait(self) -> None:
        """See `compare.base.interface.Session`."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def losses(self) -> Array:
        """See `compare.base.interface.Session`."""
        return self._answers.losses()

    def answers(self) -> list[Array]:
        """See `compare.base.requests.InferenceSession`."""
        return self._answers.logits()

    def logits(self, images: Array) -> Array:
        """See `compare.base.interface.Session`."""
        on_device = self._place(images)
        with self._scope():
            return self._fetch(self._program(on_device)(on_device))

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.base.interface.Session`."""
        images = self._place(batch.values())
        with self._scope():
            logits, outputs = self._answer_and_record(images)
        layers = recorded_layers.find_layers(self._ready, self._recorded_table())
        neutral = recorded_layers.to_neutral(layers, outputs)
        model_checks.check_dtypes(neutral, self._policy.compute_dtype)
        dtype = self._policy.parameter_dtype
        arrays = {f"activation/{name}": array.to(dtype) for name, array in neutral.items()}
        return layout.fetch(arrays | {"logits": to_channels_last(logits)})

    def export(self) -> State:
        """See `compare.base.interface.Session`."""
        if self._answers.newest is not None:
            self._fetch(self._answers.newest)
        return State({}, {}, {}, self._answers.count)

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """See `compare.base.interface.Session`."""
        del inputs, training
        raise Refused(f"no layer {layer!r} runs alone in a session that answers requests; allowed: --task train")

    def memory(self) -> Memory:
        """See `compare.base.interface.Session`."""
        return memory.report(self._device)

    def kernels(self, steps: int) -> list[Kernel]:
        """See `compare.base.interface.Session`."""

        def work() -> None:
            self.run(steps)
            self.wait()

        return profile.kernels(work)

    def program(self) -> str:
        """See `compare.base.requests.InferenceSession`."""
        if self._knobs["exported"]:
            was_there = self._was_there[tuple(self._pool[0].shape)]
            return f"{'loaded, and compiled before' if was_there else 'compiled anew, and kept'} by AOTInductor"
        compiled = "compiled by torch.compile" if self._knobs["compile"] else "run op by op"
        return f"{compiled}, captured as a CUDA graph" if self._graphs else compiled

    def settings(self) -> dict[str, Any]:
        """See `compare.base.interface.Session`."""
        table = self._recorded_table()
        with self._scope(), activations.record(self._ready, table.layers) as outputs:
            self._ready(self._pool[0])
            uses_tf32 = precision.uses_tf32()
        layers = recorded_layers.find_layers(self._ready, table)
        kinds = {name: roles.role(layer.module) for name, layer in layers.items()}
        first, compiled = activations.product(kinds, outputs), programs.count() > 0
        return {
            "parameter_dtype": _name(self._policy.parameter_dtype),
            "compute_dtype": _name(first.dtype),
            "tf32": None if self._policy.tf32 is None else uses_tf32,
            "batch_size": len(self._pool[0]),
            "batch_norm": self._spec.batch_norm,
            "devices": 1,
            "compile": compiled or bool(self._was_there),
            "exported": bool(self._was_there),
            "constant-weights": programs.count_frozen() > self._frozen,
            "channels-last": first.is_contiguous(memory_format=torch.channels_last) and not first.is_contiguous(),
            "fold-batch-norm": any(isinstance(module, nn.Identity) for module in self._ready.modules()),
            "graph-capture": bool(self._graphs),
            "input_dtype": _name(self._pool[0].dtype),
            **resources.read_settings(self._device, 1),
            **tuning.read_settings(self._spec, self._policy, self._device, compiled=compiled),
        }

    @property
    def _ready(self) -> nn.Module:
        if self._model is None:
            raise RuntimeError("no weights are assigned")
        return self._model

    @property
    def _input_dtype(self) -> torch.dtype:
        """The dtype in which images lie on the device. A twin begins with a convolution, which would cast them."""
        return self._policy.parameter_dtype if self._is_own else self._policy.compute_dtype

    def _make_model(self, spec: ModelSpec) -> tuple[nn.Module, Names]:
        """Return the model on the host, and the table of its variables and layers."""
        if self._is_own:
            return user_models.adopt(spec, self._policy)
        twin = models.build(spec, self._policy)
        return twin, layout.names(twin)

    def _place(self, images: Array) -> torch.Tensor:
        on_device = torch.from_numpy(np.asarray(images)).to(self._device, self._input_dtype)
        return pixels.values(on_device, None, channels_last=bool(self._knobs["channels-last"]))

    def _fetch(self, answer: torch.Tensor) -> Array:
        return layout.fetch({"logits": to_channels_last(answer)})["logits"]

    def _prepare(self) -> nn.Module:
        """Return the assigned model as requests take it."""
        model = copy.deepcopy(self._assigned).eval().requires_grad_(False)
        if self._knobs["fold-batch-norm"]:
            folded_modules.fold(model)
        for module in model.modules():
            if isinstance(module, (_ConvNd, nn.Linear)):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(self._policy.compute_dtype)
        model = model.to(self._device)
        if self._knobs["channels-last"]:
            # Torch documents this form, but its annotations lack it.
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def _recorded_table(self) -> Names:
        """Return the model's table without convolutions that batch norm is folded into.

        They have no output of their own.
        """
        if not self._knobs["fold-batch-norm"]:
            return self._table
        folded = folded_modules.find_pairs(self._assigned)
        layers = {path: name for path, name in self._table.layers.items() if path not in folded}
        variables = tuple(each for each in self._table.variables if each.own.rpartition(".")[0] not in folded)
        return replace(self._table, variables=variables, layers=layers)

    def _program(self, images: torch.Tensor) -> Program:
        """Return the program for images of that shape, which it has answered once."""
        shape = tuple(images.shape)
        if shape not in self._programs:
            if self._knobs["exported"]:
                loaded = packages.load_or_compile(self._spec, self._digest, self._ready, self._answer, images)
                self._programs[shape], self._was_there[shape] = loaded
                self._programs[shape](images)
            else:
                program = self._compiled or self._compile()  # made in the scope in which it runs
                self._compiled, _ = programs.run_first(program, self._compile, self._answer, images)
                self._programs = dict.fromkeys((*self._programs, shape), self._compiled)
                programs.keep_traces()
        return self._programs[shape]

    def _compile(self) -> Program:
        return tuning.compile_step(self._answer, self._knobs)

    def _answer(self, images: torch.Tensor) -> torch.Tensor:
        return self._ready(images).to(self._policy.parameter_dtype)

    def _answer_and_record(self, images: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return logits and layers' outputs, by a program of the same kind as the timed one."""
        layers = self._recorded_table().layers
        if self._knobs["exported"]:
            module = self._inspected
            if module is None:
                module = packages.export(self._ready, lambda each: self._record(each, layers), images).module()
            self._inspected = module
            return module(images)
        # A function of its own: torch.compile keeps programs by function, and this one contains recording hooks.
        program = self._inspected or tuning.compile_step(lambda each: self._answer(each), self._knobs)
        self._inspected = program
        with activations.record(self._ready, layers, copies=self._is_own) as outputs:
            logits = program(images)
        return logits, outputs

    def _record(self, images: torch.Tensor, layers: Mapping[str, str]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        with activations.record(self._ready, layers, copies=self._is_own) as outputs:
            logits = self._answer(images)
        return logits, outputs

    def _answer_in_turn(self, requests: int) -> None:
        """Answer so many of the fed batches. Nothing else is done here, because this is what is timed."""
        pool, graphs, answers = self._pool, self._graphs, self._answers
        program = None if graphs else self._program(pool[0])
        for _ in range(requests):
            index = self._position
            if program is None:
                graph, answer = graphs[index]
                graph.replay()
            else:
                answer = program(pool[index])
            answers.add(answer, index)
            self._position = (index + 1) % len(pool)

    def _warm_up(self) -> None:
        """Make the program of the fed batches. Its searches do not count as memory of requests."""
        with self._scope():
            if self._knobs["graph-capture"]:
                self._capture()
            else:
                self._program(self._pool[0])
                memory.reset_peaks(self._device)
        self._is_warm = True

    def _capture(self) -> None:
        """Capture a CUDA graph for each fed batch. They read the batches in place and share their memory."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for images in self._pool[:1] * 3:  # a search for kernels, and what libraries set up in their first calls
                self._program(images)(images)
        torch.cuda.current_stream().wait_stream(stream)
        memory.reset_peaks(self._device)  # before the captures, because a replay allocates nothing
        pool = torch.cuda.graph_pool_handle()
        for images in self._pool:
            graph, program = torch.cuda.CUDAGraph(), self._program(images)
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                answer = program(images)
            self._graphs.append((graph, answer))

    @contextmanager
    def _scope(self) -> Generator[None]:
        """Compute in the session's precision, without gradients.

        Autocast is outside of compiled programs, as in `torchbackend.step`.
        """
        mixed = self._policy.compute_dtype != self._policy.parameter_dtype
        with self._policy.scope(), torch.no_grad():
            if not mixed:
                yield
            else:
                with torch.autocast(self._device.type, self._policy.compute_dtype, cache_enabled=False):
                    yield


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
