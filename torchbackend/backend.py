"""PyTorch behind the shared interface."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from compare.base import process_group
from compare.base.interface import INFER, Refused, RunSpec, Session
from compare.base.knobs import NOT_PARALLEL
from compare.base.process_group import ProcessGroup
from compare.base.workloads import ModelSpec
from compare.worker.distributed_session import DistributedSession
from compare.worker.rank_controller import RankController
from torchbackend import memory, parallel, selftest_hooks
from torchbackend.inference import InferenceSession
from torchbackend.session import TorchSession
from torchbackend.user_models import tracing


class TorchBackend:
    """`compare.base.interface.Backend` of PyTorch."""

    name = "torch"
    _ranks: RankController | None = None

    def versions(self) -> dict[str, str]:
        """See `compare.base.interface.Backend`."""
        return _versions()

    def open(self, spec: RunSpec) -> Session:
        """See `compare.base.interface.Backend`."""
        if spec.task == INFER:
            return InferenceSession(spec)  # type: ignore[return-value] # it answers requests only
        if spec.knobs["parallel"] == NOT_PARALLEL or spec.devices == 1:
            if self._ranks is not None:
                self._ranks.close_session()
            return TorchSession(spec)  # DistributedDataParallel would only slow one device down
        if self._ranks is None:
            here = spec.devices // process_group.count_machines()
            parallel.device(spec.device, here)  # refuses before other processes start
            self._ranks = RankController(PROCESS_GROUP, here, spec.device)
        if self._ranks.world_size != spec.devices:
            raise Refused(
                f"this process trains on {self._ranks.world_size} devices; {spec.devices} need one of their own"
            )
        return DistributedSession(spec, self._ranks, lockstep=False)

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
    return {"torch": version("torch")}


BACKEND = TorchBackend()
PROCESS_GROUP = ProcessGroup("torchbackend", _versions, parallel.join, TorchSession, memory.out_of_memory)
"""What each of several processes does, a process on each device."""
