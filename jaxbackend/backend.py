"""JAX behind the shared interface."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from compare.base import process_group
from compare.base.interface import INFER, RunSpec, Session
from compare.base.knobs import NOT_PARALLEL
from compare.base.process_group import ProcessGroup
from compare.base.workloads import ModelSpec
from compare.worker.distributed_session import DistributedSession
from compare.worker.rank_controller import RankController
from jaxbackend import memory, parallel, selftest_hooks
from jaxbackend.inference import InferenceSession
from jaxbackend.session import JaxSession
from jaxbackend.user_models import tracing


class JaxBackend:
    """`compare.base.interface.Backend` of JAX."""

    name = "jax"
    _ranks: RankController | None = None

    def versions(self) -> dict[str, str]:
        """See `compare.base.interface.Backend`."""
        return _versions()

    def open(self, spec: RunSpec) -> Session:
        """See `compare.base.interface.Backend`."""
        if spec.task == INFER:
            return InferenceSession(spec)  # type: ignore[return-value] # it answers requests only
        if spec.knobs["parallel"] == NOT_PARALLEL or process_group.count_machines() == 1:
            return JaxSession(spec)
        if self._ranks is None:
            self._ranks = RankController(PROCESS_GROUP, 1, spec.device)
        return DistributedSession(spec, self._ranks, lockstep=True)  # each process runs a program for all devices

    def trace(self, model: ModelSpec, batch_size: int) -> dict[str, Any]:
        """See `compare.base.interface.Backend`."""
        return tracing.trace(model, batch_size).to_json()

    def out_of_memory(self, error: BaseException) -> bool:
        """See `compare.base.interface.Backend`."""
        return memory.out_of_memory(error)

    def delay(self, seconds: float, device: str) -> Callable[[], None] | None:
        """See `compare.base.interface.Backend`."""
        return selftest_hooks.delay(seconds, device)

    def ballast(self, size: int, device: str) -> Any:
        """See `compare.base.interface.Backend`."""
        return selftest_hooks.ballast(size, device)


def _versions() -> dict[str, str]:
    return {package: version(package) for package in ("jax", "jaxlib", "flax", "optax")}


BACKEND = JaxBackend()
PROCESS_GROUP = ProcessGroup("jaxbackend", _versions, parallel.join, JaxSession, memory.out_of_memory)
"""What each of several processes does, a process on each machine."""
