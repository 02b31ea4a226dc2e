"""PyTorch behind the shared interface."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compare.interface import Refused, RunSpec, Session
from compare.knobs import NOT_PARALLEL
from compare.workloads import ModelSpec
from torchbackend import memory, proofs
from torchbackend.own import tracing
from torchbackend.replicas import Ranks, Replicas
from torchbackend.session import TorchSession


class TorchBackend:
    """`compare.interface.Backend` of PyTorch."""

    name = "torch"
    _ranks: Ranks | None = None

    def versions(self) -> dict[str, str]:
        """See `compare.interface.Backend`."""
        return {"torch": version("torch")}

    def open(self, spec: RunSpec) -> Session:
        """See `compare.interface.Backend`."""
        if spec.knobs["parallel"] == NOT_PARALLEL:
            return TorchSession(spec)
        if self._ranks is None:
            self._ranks = Ranks(spec.devices, spec.device, Path(spec.data).parent)
        if self._ranks.count != spec.devices:
            raise Refused(f"this process trains on {self._ranks.count} devices; {spec.devices} need one of their own")
        return Replicas(spec, self._ranks)

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


BACKEND = TorchBackend()
