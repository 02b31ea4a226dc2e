"""JAX behind the shared interface."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from compare.interface import RunSpec, Session
from compare.machines import crew
from compare.machines.crew import Crew
from compare.machines.ranks import Ranks
from compare.machines.replicas import Replicas
from compare.tuning.knobs import NOT_PARALLEL
from compare.workloads import ModelSpec
from jaxbackend import memory, parallel, proofs
from jaxbackend.own import tracing
from jaxbackend.session import JaxSession


class JaxBackend:
    """`compare.interface.Backend` of JAX."""

    name = "jax"
    _ranks: Ranks | None = None

    def versions(self) -> dict[str, str]:
        """See `compare.interface.Backend`."""
        return _versions()

    def open(self, spec: RunSpec) -> Session:
        """See `compare.interface.Backend`."""
        if spec.knobs["parallel"] == NOT_PARALLEL or crew.machines() == 1:
            return JaxSession(spec)
        if self._ranks is None:
            self._ranks = Ranks(CREW, 1, spec.device)
        return Replicas(spec, self._ranks, lockstep=True)  # each process holds a program of all of them

    def trace(self, model: "ModelSpec", batch_size: int) -> dict[str, Any]:
        """See `compare.interface.Backend`."""
        return tracing.trace(model, batch_size).to_json()

    def out_of_memory(self, error: BaseException) -> bool:
        """See `compare.interface.Backend`."""
        return memory.out_of_memory(error)

    def delay(self, seconds: float, device: str) -> Callable[[], None] | None:
        """See `compare.interface.Backend`."""
        return proofs.delay(seconds, device)

    def ballast(self, size: int, device: str) -> Any:
        """See `compare.interface.Backend`."""
        return proofs.ballast(size, device)


def _versions() -> dict[str, str]:
    return {package: version(package) for package in ("jax", "jaxlib", "flax", "optax")}


BACKEND = JaxBackend()
CREW = Crew("jaxbackend", _versions, parallel.join, JaxSession, memory.out_of_memory)
"""What each of several processes does, a process on each machine."""
