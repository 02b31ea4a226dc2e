"""JAX behind the shared interface."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from compare.interface import RunSpec
from compare.workloads import ModelSpec
from jaxbackend import memory, proofs
from jaxbackend.own import tracing
from jaxbackend.session import JaxSession


class JaxBackend:
    """`compare.interface.Backend` of JAX."""

    name = "jax"

    def versions(self) -> dict[str, str]:
        """See `compare.interface.Backend`."""
        return {package: version(package) for package in ("jax", "jaxlib", "flax", "optax")}

    def open(self, spec: RunSpec) -> JaxSession:
        """See `compare.interface.Backend`."""
        return JaxSession(spec)

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


BACKEND = JaxBackend()
