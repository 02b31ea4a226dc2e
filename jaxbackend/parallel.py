"""How a batch is split over devices and a step becomes one program for all of them: the knob `parallel`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from compare.base.interface import Array, Refused
from compare.base.process_group import RankInfo
from jaxbackend import exchange, tuning
from jaxbackend.only import sharded_layers

AXIS = "devices"


class One:
    """Everything on one device.

    Attributes:
        devices: all of them, those of other processes too.
        device: the first of this process's.
        over: the axis of the devices over which batch norm takes its statistics, None for a device's own.
        mesh: the devices over which XLA splits a program, and `jaxbackend.only.sharded_layers` its layers with parameters.
    """

    over: str | None = None
    mesh: AbstractMesh | None = None

    def __init__(self, devices: list[Any], batch_norm: str) -> None:
        self.devices, self.batch_norm = devices, batch_norm
        self.local = [each for each in devices if each.process_index == jax.process_index()]
        self.device = self.local[0]

    def everywhere(self, tree: Any) -> Any:
        """Return arrays as every device has them as a whole."""
        return jax.device_put(tree, self.device)

    def program(
        self, step: Callable[..., Any], knobs: Mapping[str, Any], outputs: Any = None, *, several: bool = False
    ) -> Callable[..., Any]:
        """Return `step(state, images, labels)` as one program, or `several` of them (`jaxbackend.tuning.several`).

        `outputs` says of each part of what it returns after the state whether it is one a device (0) or one for all
        (None): a prefix of its tree.
        """
        del outputs, several
        return tuning.compiled(step, knobs, self.device.platform)

    def batch(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """Return a batch [N, ...] on the devices, as a step takes it."""
        return jax.device_put((images, labels), self.device)

    def batches(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """Return batches [P, N, ...] on the devices, as the program of several steps takes them."""
        return self.batch(images, labels)

    def copies(self, parameters: Any) -> Any:
        """Return, within a program, parameters as the model takes them in training."""
        return parameters

    def reduced(self, gradients: Any, loss: jax.Array) -> tuple[Any, jax.Array]:
        """Return, within a program, gradients and loss of the whole batch, of what devices have of them."""
        return gradients, loss

    def joined(self, array: Any) -> Any:
        """Return what a program gave for each device as for the whole batch."""
        return array

    def part(self, array: Any) -> Any:
        """Return of an array [N, ...] over the whole batch what belongs to this process's part of it."""
        return array

    def whole(self, array: jax.Array) -> jax.Array:
        """Return, within a program, an array that devices compute in parts, as each is to have it."""
        return array

    def spread(self, buffers: Any) -> Any:
        """Return buffers as a step takes them."""
        return buffers

    def one(self, buffers: Any) -> Any:
        """Return the first device's buffers."""
        return buffers


class Sharded(One):
    """`jax.jit` of the step on one whole batch, which `jax.sharding.NamedSharding` lays over a mesh of devices.

    XLA splits the program, but for layers with parameters. What it computes stays that of the whole batch: batch norm's
    statistics, too. The devices may be those of several processes, all of which run the same program; each is then fed
    its part of the batch.
    """

    over = AXIS

    def __init__(self, devices: list[Any], batch_norm: str) -> None:
        super().__init__(devices, batch_norm)
        self._mesh = Mesh(np.array(devices), (AXIS,))
        self.mesh = self._mesh.abstract_mesh

    def everywhere(self, tree: Any) -> Any:
        """See `One`."""
        return self._put(tree, PartitionSpec())

    def batch(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """See `One`."""
        return self._put((images, labels), PartitionSpec(AXIS))

    def batches(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """See `One`."""
        return self._put((images, labels), PartitionSpec(None, AXIS))

    def copies(self, parameters: Any) -> Any:
        """See `One`."""
        return sharded_layers.copies(parameters, self._mesh.abstract_mesh)

    def reduced(self, gradients: Any, loss: jax.Array) -> tuple[Any, jax.Array]:
        """See `One`."""
        return exchange.sum_of_parts(gradients, self._mesh.abstract_mesh), loss

    def part(self, array: Any) -> Any:
        """See `One`."""
        if self._mesh.is_multi_process:
            whole = multihost_utils.process_allgather(array, tiled=True)  # XLA may have laid it out as it likes
            size = len(whole) // jax.process_count()
            return whole[jax.process_index() * size :][:size]
        return array

    def whole(self, array: jax.Array) -> jax.Array:
        """See `One`."""
        return jax.lax.with_sharding_constraint(array, NamedSharding(self._mesh, PartitionSpec()))

    def _put(self, tree: Any, spec: PartitionSpec) -> Any:
        sharding = NamedSharding(self._mesh, spec)
        if self._mesh.is_multi_process:
            return jax.tree.map(lambda a: jax.make_array_from_process_local_data(sharding, np.asarray(a)), tree)
        return jax.device_put(tree, sharding)


class Mapped(Sharded):
    """`jax.pmap` of the step over a batch [devices, N, ...], its state the same on every device.

    The state goes in and comes out as one (`in_axes`, `out_axes` None), so that nothing is copied between steps; but
    batch norm's local statistics are each device's own, [devices, ...]. Of several processes each gives and gets what
    its own devices have (jax.readthedocs.io, jax.pmap), so that arrays lie on those alone.
    """

    def __init__(self, devices: list[Any], batch_norm: str) -> None:
        super().__init__(devices, batch_norm)
        self._mesh, self.mesh = Mesh(np.array(self.local), (AXIS,)), None
        self.over = AXIS if batch_norm == "sync" else None
        self._own = 0 if batch_norm == "local" else None

    def program(
        self, step: Callable[..., Any], knobs: Mapping[str, Any], outputs: Any = None, *, several: bool = False
    ) -> Callable[..., Any]:
        """See `One`."""

        # A dict of axes is taken in one process only (jax 0.10: over several, pmap looks its axes up in a cache).
        names = None if outputs is None else tuple(outputs)
        axes = None if outputs is None else tuple(outputs.values())

        def split(state: Any, buffers: Any, *arguments: Any) -> Any:
            new, found = step(state._replace(buffers=buffers), *arguments)
            listed = found if names is None else tuple(found[name] for name in names)
            return new._replace(buffers=None), new.buffers, listed

        # The buffers go apart from the state: an axis of None in a tree of axes stands for an empty tree.
        mapped = jax.pmap(
            split,
            AXIS,
            in_axes=(None, self._own, *((1, 1, None) if several else (0, 0))),
            out_axes=(None, self._own, axes),
            devices=self.devices,
            donate_argnums=(0, 1) if knobs["donation"] else (),
        )
        return _Rejoined(mapped, names)

    def copies(self, parameters: Any) -> Any:
        """See `One`."""
        return parameters

    def reduced(self, gradients: Any, loss: jax.Array) -> tuple[Any, jax.Array]:
        """See `One`."""
        return exchange.mean((gradients, loss), AXIS)

    def batch(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """See `One`."""
        return super().batch(*(self._parts(array, 0) for array in (images, labels)))

    def batches(self, images: Array, labels: Array) -> tuple[jax.Array, jax.Array]:
        """See `One`."""
        return super().batches(*(self._parts(array, 1) for array in (images, labels)))

    def joined(self, array: Any) -> Any:
        """See `One`."""
        return array.reshape(-1, *array.shape[2:])

    def spread(self, buffers: Any) -> Any:
        """See `One`."""
        if self._own is None:
            return buffers
        over = NamedSharding(self._mesh, PartitionSpec(AXIS))
        return jax.tree.map(lambda a: jax.device_put(jnp.broadcast_to(a, (len(self.local), *a.shape)), over), buffers)

    def one(self, buffers: Any) -> Any:
        """See `One`."""
        return buffers if self._own is None else self.everywhere(jax.tree.map(lambda a: a[0], buffers))

    def _parts(self, array: Array, axis: int) -> Array:
        count = len(self.local)
        return array.reshape(*array.shape[:axis], count, array.shape[axis] // count, *array.shape[axis + 1 :])


class _Rejoined:
    """A mapped program, called and lowered with a state as a whole."""

    def __init__(self, mapped: Any, names: Sequence[str] | None) -> None:
        self._mapped, self._names, self._called = mapped, names, False

    def __call__(self, state: Any, *arguments: Any) -> Any:
        self._called = True
        new, buffers, found = self._mapped(*self._apart(state), *arguments)
        named = found if self._names is None else dict(zip(self._names, found, strict=True))
        return new._replace(buffers=buffers), named

    def lower(self, state: Any, *arguments: Any) -> Any:
        """Return the program, lowered (`jax.stages.Lowered`)."""
        return self._mapped.lower(*self._apart(state), *arguments)

    def _cache_size(self) -> int:
        return int(self._called)  # as of a function of jax.jit

    @staticmethod
    def _apart(state: Any) -> tuple[Any, Any]:
        return state._replace(buffers=None), state.buffers


_WAYS: Mapping[str, type[One]] = {"none": One, "sharded": Sharded, "pmap": Mapped}


def way(name: str, count: int, batch_norm: str, device: str, place: RankInfo | None) -> One:
    """Return the way of the knob `parallel` to train on the first `count` devices of a kind.

    Of several processes, whose place this is, each gives equally many.

    Raises:
        Refused: there are not so many devices.
    """
    try:
        devices = jax.devices(device)
    except RuntimeError as error:
        raise Refused(f"jax sees no {device} device: {error}") from error
    if place is None:
        if count > len(devices):
            raise Refused(f"{count} {device} devices are not there; jax sees {len(devices)}")
        return _WAYS[name](devices[:count], batch_norm)
    each, chosen = count // place.world_size, list[Any]()
    for process in range(place.world_size):
        own = [found for found in devices if found.process_index == process]
        if each > len(own):
            raise Refused(f"{each} {device} devices are not there on machine {process}; jax sees {len(own)}")
        chosen += own[:each]
    return _WAYS[name](chosen, batch_norm)


def join(place: RankInfo, name: str, port: int) -> None:
    """Meet the other processes: `jax.distributed` with the first as coordinator, at a `port` of its machine.

    NCCL between GPUs, gloo on a CPU. Detection of clusters is off: JAX would give each process of Slurm's one device.
    """
    if name == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{place.host}:{port}", place.world_size, place.rank, cluster_detection_method="deactivate"
    )
