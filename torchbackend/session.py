"""One model in training with PyTorch: batches, dispatch, and what is read back."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo import config as dynamo
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.backends import cudnn

from compare.base import descriptions, workloads
from compare.base.interface import (
    KEPT_LOSSES,
    Array,
    Arrays,
    Batch,
    Kernel,
    Memory,
    Refused,
    RunSpec,
    State,
)
from compare.base.names import Names
from compare.base.process_group import RankInfo
from compare.base.workloads import PAIR, ModelSpec
from torchbackend import (
    activations,
    exchange,
    layout,
    memory,
    models,
    optim,
    overlap,
    parallel,
    precision,
    profile,
    rematerialisation,
    resident,
    stream,
    tuning,
    user_models,
)
from torchbackend.step import TrainingStep


class TorchSession:
    """`compare.base.interface.Session` in PyTorch."""

    def __init__(self, spec: RunSpec, place: RankInfo | None = None) -> None:
        workload, knobs = descriptions.of(spec), spec.knobs
        self._spec, self._place, self._rule = spec, place, workload.optimizer
        self._policy = precision.policy(spec.precision, spec.device, spec.loss_scale)
        if place is not None and spec.batch_norm == "sync":
            self._policy = replace(self._policy, batch_norm_synchronised=True)
        self._device = parallel.device(spec.device)
        memory.limit(self._device, spec.memory_limit_bytes)
        torch.compiler.reset()  # an earlier session's programs count against the limit of recompilations
        counters.clear()
        torch.use_deterministic_algorithms(spec.deterministic)
        cudnn.deterministic = spec.deterministic
        cudnn.benchmark = bool(knobs["kernel-search"])
        model, table = _model(workload.model.resized(spec.image_size), self._policy)
        self._signature = layout.signature(table)
        tuning.prepare(knobs, spec.device, exchanges=exchange.in_step(model))
        model = model.to(self._device)
        if knobs["rematerialisation"]:
            rematerialisation.apply(model, workloads.blocks(workload.model))
        if knobs["channels-last"]:
            # torch's annotations leave out this form, which its documentation has.
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._leaves, self._layers = layout.leaves(model, table), activations.layers(model, table)
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
            layers=table.layers,
            others=layout.others(model, self._leaves),
            inputs=workload.model.family == PAIR,
            rule=workload.optimizer,
            smoothing=workload.label_smoothing,
            accumulate=spec.accumulate,
        )
        kind = stream.Stream if knobs["input"] == "stream" else resident.Resident
        self._input = kind(self._step, self._policy, self._device, knobs)
        if workload.model.family == PAIR and knobs["channels-last"]:
            image = workload.model.resized(spec.image_size).image
            images, _ = self._input.placed(Batch(np.zeros((2, *image), np.float32), np.zeros(2, np.int32)))
            user_models.refuse_views(workload.model, lambda: self._step.layer_outputs(images))
        self._losses: deque[torch.Tensor] = deque(maxlen=KEPT_LOSSES)
        self._begun = False

    @property
    def steps_per_dispatch(self) -> int:
        """See `compare.base.interface.Session`."""
        return self._spec.knobs["steps-per-dispatch"]

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.base.interface.Session`."""
        return self._signature

    def assign(self, arrays: Arrays) -> None:
        """See `compare.base.interface.Session`."""
        layout.assign(self._leaves, arrays)
        self._step.reset()

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.base.interface.Session`."""
        if len({each.form for each in batches}) > 1:
            raise ValueError("a session takes batches of one size")
        self._input.feed(batches)
        self._losses.clear()

    def run(self, steps: int) -> None:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            while steps:
                taken, losses = self._input.dispatch(steps)
                if not (self._begun or self._input.captured):
                    memory.begin_anew(self._device)
                self._begun = True
                self._losses.append(losses)
                steps -= taken

    def wait(self) -> None:
        """See `compare.base.interface.Session`."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def losses(self) -> Array:
        """See `compare.base.interface.Session`."""
        if not self._losses:
            return np.zeros(0)
        return np.concatenate([np.atleast_1d(loss.cpu().numpy()) for loss in self._losses])[-KEPT_LOSSES:]

    def logits(self, images: Array) -> Array:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            placed, _ = self._input.placed(Batch(images, np.zeros(len(images), np.int32)))
            return layout.fetched({"logits": layout.channels_last(self._step.evaluate(placed))})["logits"]

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            parameters = [leaf for leaf in self._leaves if leaf.is_parameter]
            before = {leaf.name: leaf.tensor.detach().clone() for leaf in parameters}
            internals = self._step.inspected(*self._input.placed(batch))
        dtype, gradients = self._policy.parameter_dtype, internals["gradient"]
        outputs = activations.neutral(self._layers, internals["activation"])
        user_models.refuse_other_dtypes(outputs, self._policy)
        found = {f"activation/{name}": array.to(dtype) for name, array in outputs.items()}
        found |= {name: layout.channels_last(internals[name]) for name in ("logits", "loss")}
        kinds = {
            "gradient": {
                leaf.name: gradients[id(leaf.tensor)] if id(leaf.tensor) in gradients else torch.zeros_like(leaf.tensor)
                for leaf in parameters
            },
            "update": {leaf.name: leaf.tensor.detach() - before[leaf.name] for leaf in parameters},
            "buffer": {leaf.name: leaf.tensor for leaf in self._leaves if not leaf.is_parameter},
        }
        for kind, tensors in kinds.items():
            found |= {f"{kind}/{name}": tensor for name, tensor in layout.export(tensors, self._leaves).items()}
        return layout.fetched(found)

    def export(self) -> State:
        """See `compare.base.interface.Session`."""
        arrays = layout.fetched(layout.export({leaf.name: leaf.tensor for leaf in self._leaves}, self._leaves))
        return State(
            parameters={leaf.name: arrays[leaf.name] for leaf in self._leaves if leaf.is_parameter},
            buffers={leaf.name: arrays[leaf.name] for leaf in self._leaves if not leaf.is_parameter},
            optimizer=optim.export(self._step.update, self._leaves),
            step=self._step.taken,
        )

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """See `compare.base.interface.Session`."""
        if layer not in self._layers:
            raise Refused(f"no layer {layer!r} in this session; allowed: {', '.join(self._layers)}")
        placed = torch.from_numpy(inputs).to(self._device)
        if placed.is_floating_point():
            placed = placed.to(self._policy.parameter_dtype)
        with self._policy.scope(), self._policy.autocast(self._device.type):
            output = self._layers[layer].run_layer(placed, training=training)
        return layout.fetched({"output": output.to(self._policy.parameter_dtype)})["output"]

    def memory(self) -> Memory:
        """See `compare.base.interface.Session`."""
        return memory.report(self._device)

    def kernels(self, steps: int) -> list[Kernel]:
        """See `compare.base.interface.Session`."""

        def work() -> None:
            self.run(steps)
            self.wait()

        return profile.kernels(work)

    def settings(self) -> dict[str, Any]:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            images, labels = self._input.first()
            outputs = self._step.layer_outputs(images)
            products = {switch.fp32_precision for switch in precision.tf32_switches()}
        first = activations.product(self._layers, outputs)
        reduced, compiled = exchange.reduction_dtype(self._step.model, self._place), counters["frames"]["ok"] > 0
        return {
            "parameter_dtype": _name(self._leaves[0].tensor.dtype),
            "compute_dtype": _name(first.dtype),
            "layer_dtypes": {name: _name(output.dtype) for name, output in outputs.items()},
            "tf32": None if self._policy.tf32 is None else products == {"tf32"},
            "loss_scaling": self._step.scaling.is_enabled(),
            "batch_size": len(labels),
            "accumulate": self._spec.accumulate,
            "learning_rates": optim.rates(self._rule),
            "parallel": "none" if self._place is None else "ddp",
            "devices": 1 if self._place is None else self._place.world_size,
            "batch_norm": self._spec.batch_norm,
            "reduction_dtype": reduced and _name(reduced),
            "overlap-reduction": reduced is not None and (not compiled or bool(dynamo.optimize_ddp)),
            "compiled-autograd": counters["compiled_autograd"]["captures"] > 0,
            "compile": compiled,
            "graph-breaks": sum(counters["graph_break"].values()),
            "channels-last": first.is_contiguous(memory_format=torch.channels_last) and not first.is_contiguous(),
            "fused-optimizer": bool(self._step.update.param_groups[0]["fused"]),
            "graph-capture": self._input.captured,
            "steps-per-dispatch": self.steps_per_dispatch if self._input.captured else 1,
            "input": self._input.name,
            "input_dtype": _name(self._input.dtype),
            "kernel-search": cudnn.benchmark,
            "max-autotune": inductor.max_autotune and inductor.coordinate_descent_tuning,
            "pointwise-matmul": inductor.conv_1x1_as_mm,
            "concurrent-kernels": inductor.combo_kernels,
            "overlap-exchanges": tuning.changes(overlap.beside_exchanges),
            "rematerialisation": rematerialisation.recomputed(self._step.model) > 0,
            "threads": torch.get_num_threads(),
            "excess_precision": compiled and _excess_precision(self._policy),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "debugging": ["anomaly detection"] if torch.is_anomaly_enabled() else [],
        }


def _model(spec: ModelSpec, policy: precision.Policy) -> tuple[nn.Module, Names]:
    """Return a model, its values yet to be assigned, and the table of what it consists of."""
    if spec.family == PAIR:
        return user_models.adopt(spec, policy)
    twin = models.build(spec, policy)
    return twin, layout.names(twin)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _excess_precision(policy: precision.Policy) -> bool:
    """TorchInductor may leave out roundings between fused operations unless its option forbids it."""
    mixed = policy.compute_dtype != policy.parameter_dtype
    return mixed and not inductor.emulate_precision_casts
