"""How a contender's processes share compiled programs: the first of a machine makes each, the others find it.

Each process of DistributedDataParallel's traces the same graphs. Where all compile at once, every kernel is compiled as
often as there are processes, on the same cores. Programs are found in TorchInductor's cache, which they share; on GPUs
each process calls its own the first (`compare.base.process_group.own_gpu`), so that all programs are the same.
"""

import hashlib
import importlib
import itertools
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._inductor import config as inductor
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.fx import GraphModule

from compare.base.process_group import RankInfo

LONGEST_WAIT_SECONDS = 300.0  # half of what NCCL waits for another process
_POLL_SECONDS = 0.02
_FORWARD, _BACKWARD = "forward", "backward"


class Store(Protocol):
    """What processes tell each other by: `torch.distributed.Store`."""

    def set(self, key: str, value: str, /) -> None:
        """Keep a value for all."""

    def check(self, keys: list[str], /) -> bool:
        """Tell, without waiting, whether all of these are there."""
        ...


class Shared:
    """A backend for `torch.compile`: TorchInductor, but the machine's first process compiles a graph before the others.

    All processes compile the same graphs in the same order, and number them. What a graph computes backward torch
    compiles when it is first needed, unless it finds both in its cache, or there is nothing to differentiate. Nobody
    waits for a graph that is in the cache, beside which the first leaves word of it, nor for longer than
    `LONGEST_WAIT_SECONDS`.
    """

    def __init__(self, store: Store, place: RankInfo) -> None:
        self._store, self._is_first, self._machine = store, place.local_rank == 0, place.rank // place.local_world_size
        self._numbers = itertools.count()

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Any:
        """Return the compiled graph."""
        number, comes_later = next(self._numbers), False
        own = inductor_compiler()

        def compiled(graph: GraphModule, inputs: Sequence[Any], *arguments: Any, **options: Any) -> Any:
            nonlocal comes_later
            backward = bool(options.get("is_backward"))
            if not backward:
                comes_later = not options.get("is_inference")
            with self.turn(number, _BACKWARD if backward else _FORWARD, word(graph, inputs)):
                return own.compile_fx_inner(graph, inputs, *arguments, **options)

        try:
            return own.compile_fx(graph, inputs, inner_compile=compiled)
        finally:
            self._tell(number, _FORWARD)
            if not comes_later:
                self._tell(number, _BACKWARD)

    @contextmanager
    def turn(self, number: int, part: str, kept: Path) -> Generator[None]:
        """Wait until the machine's first process has compiled a part of a graph; in that one, tell when it has.

        `kept` is there once a process before, or the first one, has left the program in the cache.
        """
        key, end = self._key(number, part), time.monotonic() + LONGEST_WAIT_SECONDS
        while not (self._is_first or self._store.check([key]) or kept.exists()) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        try:
            yield
            if self._is_first:
                with suppress(OSError):  # as torch, which goes on where it cannot keep a program
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.touch()
        finally:
            self._tell(number, part)

    def _tell(self, number: int, part: str) -> None:
        if self._is_first:
            self._store.set(self._key(number, part), "")

    def _key(self, number: int, part: str) -> str:
        return f"samestep/programs/{self._machine}/{number}/{part}"


def word(graph: GraphModule, inputs: Sequence[Any]) -> Path:
    """Return the file beside TorchInductor's cache that says that a graph was compiled.

    It is of the graph's code, its inputs, and how it is compiled. Where TorchInductor minds more than these, a process
    that does not wait compiles by itself.
    """
    given = [
        (str(each.shape), str(each.dtype), str(each.stride()), each.device.type) if torch.is_tensor(each) else each
        for each in inputs
    ]
    passes: Any = inductor.post_grad_custom_post_pass  # as `tuning.prepare` sets it
    where = {torch.cuda.get_device_name(each.device) for each in inputs if torch.is_tensor(each) and each.is_cuda}
    how = torch.__version__, sorted(inductor.save_config_portable().items()), passes and passes.uuid(), where
    return Path(cache_dir(), "samestep", hashlib.sha256(repr((graph.code, given, how)).encode()).hexdigest())


def inductor_compiler() -> Any:
    """Return TorchInductor's compiler, which takes as long to import as torch itself: only who compiles does so."""
    return importlib.import_module("torch._inductor.compile_fx")


_joined: Shared | None = None


def share(store: Store, place: RankInfo) -> None:
    """Share programs from now on, once this process has met the others."""
    global _joined
    _joined = Shared(store, place)


def compiler(*, shared: bool) -> "str | Shared":
    """Return the backend for `torch.compile`, `shared` with this contender's other processes or not.

    Where torch keeps no programs, none is waited for.
    """
    kept = inductor.fx_graph_cache and not inductor.force_disable_caches
    return _joined if shared and kept and _joined is not None else "inductor"
