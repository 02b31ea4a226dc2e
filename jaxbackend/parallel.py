"""How a batch is split over devices and a step becomes one program for all of them: the knob `parallel`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from compare.base.interface import Array, KnobValues, Refused
from compare.base.process_group import RankInfo
from jaxbackend import tuning
from jaxbackend.exchange import AXIS
from jaxbackend.only import joint_gradients, sharded_layers


class Strategy:
    """How a step uses its devices. This class puts everything on one device.

    Attributes:
        devices: all devices, also those of other processes.
        local: this process's devices.
        device: the first of these.
        synchronised: whether batch norm takes its statistics over all devices.
        mesh: the devices over which XLA splits a program, and `jaxbackend.only.sharded_layers` a model's layers.
    """

    synchronised = False
    mesh: AbstractMesh | None = None

    def __init__(self, devices: list[Any], batch_norm: str) -> None:
        self.devices, self.batch_norm = devices, batch_norm
        self.local = [device for device in devices if device.process_index == jax.process_index()]
        self.device = self.local[0]

    def everywhere(self, tree: Any) -> Any:
        """Return arrays with a whole copy on every device."""
        return jax.device_put(tree, self.device)

    def compile(
        self, step: Callable[..., Any], knobs: KnobValues, outputs: Any = None, *, several: bool = False
    ) -> Callable[..., Any]:
        """Return `step(state, images, labels)` as a program, or `several` steps (`jaxbackend.only.scans.scan_steps`).

        `outputs` tells for each output after the state whether it exists once a device (0) or once for all devices
        (None). It is a prefix of the outputs' tree.
        """
        del outputs, several
        return tuning.compile_step(step, knobs, self.device.platform)

    def batch(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """Return a batch [N, ...] on the devices, as a step takes it."""
        return jax.device_put((images, labels), self.device)

    def batches(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """Return batches [P, N, ...] on the devices, as the program of several steps takes them."""
        return self.batch(images, labels)

    def copy(self, parameters: Any) -> Any:
        """Return, within a program, parameters as the model takes them in training."""
        return parameters

    def reduce(self, gradients: Any, loss: jax.Array) -> tuple[Any, jax.Array]:
        """Return, within a program, gradients and loss of the whole batch, from those of the devices."""
        return gradients, loss

    def join(self, array: Any) -> Any:
        """Return a program's output for each device as one array for the whole batch."""
        return array

    def part(self, array: Any) -> Any:
        """Return this process's part of an array [N, ...] over the whole batch."""
        return array

    def whole(self, array: jax.Array) -> jax.Array:
        """Return, within a program, a whole copy for each device of an array that devices compute in parts."""
        return array

    def spread(self, buffers: Any) -> Any:
        """Return buffers as a step takes them."""
        return buffers

    def first(self, buffers: Any) -> Any:
        """Return the first device's buffers."""
        return buffers


class _Sharded(Strategy):
    """`jax.jit` of the step on one whole batch, which `jax.sharding.NamedSharding` lays over a mesh of devices.

    XLA splits the program, except for layers with parameters. The program computes the same as for the whole batch on
    one device, batch norm's statistics included. The devices may belong to several processes. These run the same
    program, and each gets its part of the batch.
    """

    synchronised = True

    def __init__(self, devices: list[Any], batch_norm: str) -> None:
        super().__init__(devices, batch_norm)
        self._mesh = Mesh(np.array(devices), (AXIS,))
        self.mesh = self._mesh.abstract_mesh

    def everywhere(self, tree: Any) -> Any:
        """See `Strategy`."""
        return self._put(tree, PartitionSpec())

    def batch(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """See `Strategy`."""
        return self._put((images, labels), PartitionSpec(AXIS))

    def batches(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """See `Strategy`."""
        return self._put((images, labels), PartitionSpec(None, AXIS))

    def copy(self, parameters: Any) -> Any:
        """See `Strategy`."""
        return sharded_layers.copy_to_devices(parameters, self._mesh.abstract_mesh)

    def reduce(self, gradients: Any, loss: jax.Array) -> tuple[Any, jax.Array]:
        """See `Strategy`."""
        return joint_gradients.add_parts(gradients, self._mesh.abstract_mesh), loss

    def part(self, array: Any) -> Any:
        """See `Strategy`."""
        if self._mesh.is_multi_process:
            whole = multihost_utils.process_allgather(array, tiled=True)  # XLA chooses the layout
            size = len(whole) // jax.process_count()
            return whole[jax.process_index() * size :][:size]
        return array

    def whole(self, array: jax.Array) -> jax.Array:
        """See `Strategy`."""
        return jax.lax.with_sharding_constraint(array, NamedSharding(self._mesh, PartitionSpec()))

    def _put(self, tree: Any, spec: PartitionSpec) -> Any:
        sharding = NamedSharding(self._mesh, spec)
        if self._mesh.is_multi_process:
            return jax.tree.map(lambda a: jax.make_array_from_process_local_data(sharding, np.asarray(a)), tree)
        return jax.device_put(tree, sharding)


class _Mapped(_Sharded):
    """`jax.pmap` of the step over a batch [devices, N, ...], its state the same on every device.

    The state goes in and out as one (`in_axes` and `out_axes` are None), so nothing is copied between steps. Batch
    norm's local statistics [devices, ...] are each device's own. Each of several processes passes only the arrays of
    its own devices (jax.readthedocs.io, jax.pmap).
    """

    def __init__(self, devices: list[Any], batch_norm: str) -> None:
        super().__init__(devices, batch_norm)
        self._mesh, self.mesh = Mesh(np.array(self.local), (AXIS,)), None
        self.synchronised = batch_norm == "sync"
        self._own = 0 if batch_norm == "local" else None

    def compile(
        self, step: Callable[..., Any], knobs: KnobValues, outputs: Any = None, *, several: bool = False
    ) -> Callable[..., Any]:
        """See `Strategy`."""

        # Over several processes, pmap takes no dict of axes, because it looks axes up in a cache (jax 0.10).
        names = None if outputs is None else tuple(outputs)
        axes = None if outputs is None else tuple(outputs.values())

        def split(state: Any, buffers: Any, *arguments: Any) -> Any:
            new, results = step(state._replace(buffers=buffers), *arguments)
            listed = results if names is None else tuple(results[name] for name in names)
            return new._replace(buffers=None), new.buffers, listed

        # Buffers are an argument of their own: in a tree of axes, None means an empty tree.
        mapped = jax.pmap(
            split,
            AXIS,
            in_axes=(None, self._own, *((1, 1, None) if several else (0, 0))),
            out_axes=(None, self._own, axes),
            devices=self.devices,
            donate_argnums=(0, 1) if knobs["donation"] else (),
        )
        return _MappedProgram(mapped, names)

    def copy(self, parameters: Any) -> Any:
        """See `Strategy`."""
        return parameters

    def reduce(self, gradients: Any, loss: jax.Array) -> tuple[Any, jax.Array]:
        """See `Strategy`."""
        return joint_gradients.average((gradients, loss), AXIS)

    def batch(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """See `Strategy`."""
        return super().batch(*(self._parts(array, 0) for array in (images, labels)))

    def batches(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """See `Strategy`."""
        return super().batches(*(self._parts(array, 1) for array in (images, labels)))

    def join(self, array: Any) -> Any:
        """See `Strategy`."""
        return array.reshape(-1, *array.shape[2:])

    def spread(self, buffers: Any) -> Any:
        """See `Strategy`."""
        if self._own is None:
            return buffers
        over = NamedSharding(self._mesh, PartitionSpec(AXIS))
        return jax.tree.map(lambda a: jax.device_put(jnp.broadcast_to(a, (len(self.local), *a.shape)), over), buffers)

    def first(self, buffers: Any) -> Any:
        """See `Strategy`."""
        return buffers if self._own is None else self.everywhere(jax.tree.map(lambda a: a[0], buffers))

    def _parts(self, array: Array, axis: int) -> Array:
        count = len(self.local)
        return array.reshape(*array.shape[:axis], count, array.shape[axis] // count, *array.shape[axis + 1 :])


class _MappedProgram:
    """A mapped program that takes and returns whole states."""

    def __init__(self, mapped: Any, names: Sequence[str] | None) -> None:
        self._mapped, self._names, self._called = mapped, names, False

    def __call__(self, state: Any, *arguments: Any) -> Any:
        self._called = True
        new, buffers, results = self._mapped(*self._split(state), *arguments)
        named = results if self._names is None else dict(zip(self._names, results, strict=True))
        return new._replace(buffers=buffers), named

    def lower(self, state: Any, *arguments: Any) -> Any:
        """Return the lowered program (`jax.stages.Lowered`)."""
        return self._mapped.lower(*self._split(state), *arguments)

    def _cache_size(self) -> int:
        return int(self._called)  # as a function of jax.jit has it

    @staticmethod
    def _split(state: Any) -> tuple[Any, Any]:
        return state._replace(buffers=None), state.buffers


_STRATEGIES: Mapping[str, type[Strategy]] = {"none": Strategy, "sharded": _Sharded, "pmap": _Mapped}


def choose_strategy(name: str, count: int, batch_norm: str, device: str, place: RankInfo | None) -> Strategy:
    """Return the strategy that the knob `parallel` names for the first `count` devices of a kind.

    Each of several processes gives the same number of devices.

    Raises:
        Refused: there are fewer devices.
    """
    try:
        devices = jax.devices(device)
    except RuntimeError as error:
        raise Refused(f"jax sees no {device} device: {error}") from error
    if place is None:
        if count > len(devices):
            raise Refused(f"{count} {device} devices are needed; jax sees {len(devices)}")
        return _STRATEGIES[name](devices[:count], batch_norm)
    share, chosen = count // place.world_size, list[Any]()
    for process in range(place.world_size):
        own = [device for device in devices if device.process_index == process]
        if share > len(own):
            raise Refused(f"{share} {device} devices are needed on machine {process}; jax sees {len(own)}")
        chosen += own[:share]
    return _STRATEGIES[name](chosen, batch_norm)


def join(place: RankInfo, name: str, port: int) -> None:
    """Meet the other processes at a `port` of the first one's machine: NCCL between GPUs, gloo on a CPU.

    Detection of clusters is off: with Slurm, JAX would give each process one device.
    """
    if name == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{place.host}:{port}", place.world_size, place.rank, cluster_detection_method="deactivate"
    )
