"""One model in training with PyTorch: it takes batches, dispatches steps and reads results back."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo import config as dynamo
from torch._dynamo.utils import counters
from torch.backends import cudnn

from compare.base import descriptions, workloads
from compare.base.interface import (
    KEPT_LOSSES,
    Array,
    Arrays,
    Batch,
    Kernel,
    Memory,
    RunSpec,
    State,
)
from compare.base.names import Names
from compare.base.operation_counts import Operation
from compare.base.process_group import RankInfo
from compare.base.profiles import TORCH, Peaks, Profile, layer_kind
from compare.base.workloads import PAIR, ModelSpec
from compare.kernels import plans
from torchbackend import (
    activations,
    exchange,
    layout,
    memory,
    models,
    operations,
    optim,
    parallel,
    peaks,
    precision,
    profile,
    rematerialisation,
    resident,
    resources,
    roles,
    stream,
    tuning,
    user_models,
)
from torchbackend.only import (
    exact_gradients,
    layer_scopes,
    model_checks,
    modules,
    programs,
    recorded_layers,
)
from torchbackend.step import TrainingStep


class TorchSession:
    """`compare.base.interface.Session` in PyTorch."""

    def __init__(self, spec: RunSpec, place: RankInfo | None = None) -> None:
        workload, knobs = descriptions.read_workload(spec), spec.knobs
        self._spec, self._place, self._rule = spec, place, workload.optimizer
        self._policy = precision.policy(spec.precision, spec.device, spec.loss_scale)
        if place is not None and spec.batch_norm == "sync":
            self._policy = replace(self._policy, synchronised=True)
        self._device = parallel.device(spec.device)
        if knobs["fused-batch-norm"]:
            self._policy = replace(self._policy, fuses_batch_norm=True)
            name, size = torch.cuda.get_device_name(self._device), self._policy.compute_dtype.itemsize
            plans.use(name, size, tf32=bool(self._policy.tf32))
        memory.limit(self._device, spec.memory_limit_bytes)
        torch.compiler.reset()  # an earlier session's programs count towards the limit of recompilations
        counters.clear()
        torch.use_deterministic_algorithms(spec.deterministic)
        cudnn.deterministic = spec.deterministic
        exact_gradients.use(wanted=self._policy.compute_dtype == torch.float64)
        model, table = _model(workload.model.resized(spec.image_size), self._policy)
        if place is not None and workload.model.family == PAIR:
            model_checks.check_local_norms(model)
        self._signature = layout.signature(table)
        # Torch needs seconds to trace a step, so its processes share what one has traced. JAX needs less than one.
        # Torch can write no trace of some users' code, and none of programs that several processes share.
        is_alone = place is None and not knobs["compiled-autograd"] and workload.model.family != PAIR
        exchanges = modules.has_exchanges(model)
        tuning.prepare(knobs, spec.device, exchanges=exchanges, keeps_traces=spec.keeps_traces and is_alone)
        model = model.to(self._device)
        if knobs["rematerialisation"]:
            rematerialisation.apply(model, workloads.list_blocks(workload.model))
        if knobs["channels-last"]:
            # Torch documents this form, but its annotations lack it.
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._leaves, self._layers = layout.leaves(model, table), recorded_layers.find_layers(model, table)
        update = optim.build(
            workload.optimizer,
            self._leaves,
            fused=bool(knobs["fused-optimizer"]),
            capturable=bool(knobs["graph-capture"]),
        )
        self._step = TrainingStep(
            model,
            update,
            self._policy,
            self._device,
            knobs,
            place,
            layers=self._layers,
            paths=table.layers,
            others=_find_others(model, self._leaves),
            inputs=workload.model.family == PAIR,
            rule=workload.optimizer,
            smoothing=workload.label_smoothing,
            accumulate=spec.accumulate,
            task_loss=user_models.make_loss(workload, self._policy),
            inspects_uncompiled=spec.inspects_uncompiled,
        )
        kind = stream.Stream if knobs["input"] == "stream" else resident.Resident
        self.loading_seconds = self._step.loading_seconds
        self._input = kind(self._step, self._policy, self._device, knobs)
        if workload.model.family == PAIR and knobs["channels-last"]:
            image = workload.model.resized(spec.image_size).image
            images, _ = self._input.place(Batch(np.zeros((2, *image), np.float32), np.zeros(2, np.int32)))
            model_checks.check_channels_last(workload.model, lambda: self._step.layer_outputs(images))
        self._losses: deque[torch.Tensor] = deque(maxlen=KEPT_LOSSES)
        self._has_run = False
        self._graphs: layer_scopes.Graphs | None = None

    @property
    def steps_per_dispatch(self) -> int:
        """See `compare.base.interface.Session`."""
        return int(self._spec.knobs["steps-per-dispatch"])

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.base.interface.Session`."""
        return self._signature

    def assign(self, arrays: Arrays) -> None:
        """See `compare.base.interface.Session`."""
        layout.assign(self._leaves, arrays)
        self._step.reset()

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.base.interface.Session`."""
        if len({batch.form for batch in batches}) > 1:
            raise ValueError("a session takes batches of one size")
        self._input.feed(batches)
        self._losses.clear()

    def run(self, steps: int) -> None:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            while steps:
                taken, losses = self._input.dispatch(steps)
                if not (self._has_run or self._input.captured):
                    memory.reset_peaks(self._device)
                if not self._has_run:
                    programs.keep_traces()
                self._has_run = True
                self._losses.append(losses)
                steps -= taken

    def wait(self) -> None:
        """See `compare.base.interface.Session`."""
        self._input.wait()

    def losses(self) -> Array:
        """See `compare.base.interface.Session`."""
        if not self._losses:
            return np.zeros(0)
        return np.concatenate([np.atleast_1d(loss.cpu().numpy()) for loss in self._losses])[-KEPT_LOSSES:]

    def logits(self, images: Array) -> Array:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            on_device, _ = self._input.place(Batch(images, np.zeros(len(images), np.int32)))
            return layout.fetch({"logits": self._step.evaluate(on_device)})["logits"]

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            parameters = [leaf for leaf in self._leaves if leaf.is_parameter]
            before = [(leaf, leaf.tensor.detach().clone()) for leaf in parameters]
            internals = self._step.inspect(*self._input.place(batch))
        dtype, gradients = self._policy.parameter_dtype, internals["gradient"]
        outputs = recorded_layers.to_neutral(self._layers, internals["activation"])
        model_checks.check_dtypes(outputs, self._policy.compute_dtype)
        arrays = {f"activation/{name}": array.to(dtype) for name, array in outputs.items()}
        arrays |= {name: internals[name] for name in ("logits", "loss")}
        kinds = {
            "gradient": {
                leaf.name: gradients[id(leaf.tensor)] if id(leaf.tensor) in gradients else torch.zeros_like(leaf.tensor)
                for leaf in parameters
            },
            "update": {leaf.name: torch.sub(leaf.tensor.detach(), old, out=old) for leaf, old in before},
            "buffer": {leaf.name: leaf.tensor.clone() for leaf in self._leaves if not leaf.is_parameter},
        }
        for kind, tensors in kinds.items():
            arrays |= {f"{kind}/{name}": tensor for name, tensor in layout.export(tensors, self._leaves).items()}
        return layout.fetch(arrays, owned=True)

    def export(self) -> State:
        """See `compare.base.interface.Session`."""
        arrays = layout.fetch(layout.export({leaf.name: leaf.tensor for leaf in self._leaves}, self._leaves))
        return State(
            parameters={leaf.name: arrays[leaf.name] for leaf in self._leaves if leaf.is_parameter},
            buffers={leaf.name: arrays[leaf.name] for leaf in self._leaves if not leaf.is_parameter},
            optimizer=optim.export(self._step.update, self._leaves),
            step=self._step.count,
        )

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """See `compare.base.interface.Session`."""
        on_device = torch.from_numpy(inputs).to(self._device)
        if on_device.is_floating_point():
            on_device = on_device.to(self._policy.parameter_dtype)
        with self._policy.scope():
            output = self._step.run_layer(layer, on_device, training)
        return layout.fetch({"output": output.to(self._policy.parameter_dtype)})["output"]

    def memory(self) -> Memory:
        """See `compare.base.interface.Session`."""
        return memory.report(self._device)

    def kernels(self, steps: int) -> list[Kernel]:
        """See `compare.base.interface.Session`."""

        def work() -> None:
            self.run(steps)
            self.wait()

        return profile.kernels(work)

    def watch(self) -> None:
        """See `compare.base.interface.Session`."""
        if self._spec.knobs["compile"]:
            self._graphs = layer_scopes.Graphs(self._modules())

    def profile(self, steps: int) -> Profile:
        """See `compare.base.interface.Session`."""

        def work() -> None:
            self.run(steps)
            self.wait()

        if layer_scopes.is_under_nsight():
            with layer_scopes.nvtx_ranges({} if self._graphs else self._modules()):
                work()
        modules_of_programs = layer_scopes.compiled_modules() if self._graphs else []
        scopes = layer_scopes.named_cpu_kernels() if self._graphs else layer_scopes.named(self._modules())
        with scopes:
            events = profile.events(work)
        return Profile(
            TORCH,
            self._spec.device,
            steps,
            events,
            [Path(module.__file__).read_text(encoding="utf-8") for module in modules_of_programs],
            nodes=self._graphs.nodes if self._graphs else {},
            layers={
                name: layer_kind(roles.role(module), type(module).__name__) for name, module in self._modules().items()
            },
            parameters={leaf.name: math.prod(leaf.shape) for leaf in self._leaves if leaf.is_parameter},
        )

    def operations(self) -> list[Operation]:
        """See `compare.base.interface.Session`."""
        images, _ = self._input.first()
        return operations.count(self._step.model, images, self._modules())

    def peaks(self) -> Peaks:
        """See `compare.base.interface.Session`."""
        return peaks.measure(self._policy, self._device)

    def _modules(self) -> dict[str, torch.nn.Module]:
        """Return every module of the model by its neutral name, or by its own path if it has no such name."""
        names = {id(layer.module): name for name, layer in self._layers.items()}
        return {names.get(id(module), path): module for path, module in self._step.model.named_modules() if path}

    def settings(self) -> dict[str, Any]:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            images, labels = self._input.first()
            outputs = self._step.layer_outputs(images)
            uses_tf32 = precision.uses_tf32()
        kinds = {name: roles.role(layer.module) for name, layer in self._layers.items()}
        first, compiled = activations.product(kinds, outputs), self._step.programs > 0
        reduced = None if self._place is None else exchange.reduction_dtype(self._step.model)
        return {
            "parameter_dtype": _name(self._leaves[0].tensor.dtype),
            "compute_dtype": _name(first.dtype),
            "layer_dtypes": {name: _name(output.dtype) for name, output in outputs.items()},
            "tf32": None if self._policy.tf32 is None else uses_tf32,
            "loss_scaling": self._step.scaling.is_enabled(),
            "batch_size": len(labels),
            "accumulate": self._spec.accumulate,
            "learning_rates": optim.rates(self._rule),
            "parallel": "none" if self._place is None else "ddp",
            "devices": 1 if self._place is None else self._place.world_size,
            "batch_norm": self._spec.batch_norm,
            "reduction_dtype": reduced,
            "overlap-reduction": reduced is not None and (not compiled or bool(dynamo.optimize_ddp)),
            "compile": compiled,
            "channels-last": first.is_contiguous(memory_format=torch.channels_last) and not first.is_contiguous(),
            "fused-optimizer": bool(self._step.update.param_groups[0]["fused"]),
            "graph-capture": self._input.captured,
            "steps-per-dispatch": self.steps_per_dispatch if self._input.captured else 1,
            "input": self._input.name,
            "input_dtype": _name(self._input.dtype),
            "rematerialisation": rematerialisation.count_recomputed(self._step.model) > 0,
            "fused-batch-norm": self._policy.fuses_batch_norm,
            **resources.read_settings(self._device, 1 if self._place is None else self._place.world_size),
            **tuning.read_settings(self._spec, self._policy, self._device, compiled=compiled),
        }


def _model(spec: ModelSpec, policy: precision.Policy) -> tuple[nn.Module, Names]:
    """Return a model, and the table of its variables and layers. Its values are assigned later."""
    if spec.family == PAIR:
        return user_models.adopt(spec, policy)
    twin = models.build(spec, policy)
    return twin, layout.names(twin)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _find_others(model: nn.Module, leaves: layout.Leaves) -> dict[str, torch.Tensor]:
    """Return the buffers of a model that do not cross, by its own names for them."""
    crossing = {id(leaf.tensor) for leaf in leaves}
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in crossing}
