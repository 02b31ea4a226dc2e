"""How a contender's processes share compiled programs: a machine's first process compiles, the others load.

All processes of DistributedDataParallel trace the same graphs. If all compiled at once, every process would compile
every kernel on the same cores. They share TorchInductor's cache. On GPUs, each process sees its own GPU as the first
(`compare.base.process_group.own_gpu`), so all programs are the same.
"""

import hashlib
import importlib
import itertools
import logging
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._dynamo import config as dynamo
from torch._dynamo.exc import InternalTorchDynamoError
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.fx import GraphModule

from compare.base.process_group import RankInfo

LONGEST_WAIT_SECONDS = 300.0  # half the time that NCCL waits for another process
_POLL_SECONDS = 0.02
_FORWARD, _BACKWARD = "forward", "backward"
_INSTALLED = "__builtins_dict__", "__compiled_fn_", "__import_", "__resume_at_"
"""How names begin that torch gives to the parts of a traced program."""
_FROZEN = "_frozen_param"
"""How names begin that torch gives to weights that are constants."""


class Store(Protocol):
    """A store that all processes share: `torch.distributed.Store`."""

    def set(self, key: str, value: str, /) -> None:
        """Store a value for all processes."""

    def check(self, keys: list[str], /) -> bool:
        """Tell, without waiting, whether all of these keys exist."""
        ...


class Shared:
    """A backend for `torch.compile`: TorchInductor, but one process of a machine compiles each graph first.

    All processes compile the same graphs in the same order, and number them. Torch compiles a graph's backward part
    when it first runs, unless the cache has both parts or there is no gradient. The first process leaves a file beside
    the cache for each compiled part. The others wait until the file exists, for `LONGEST_WAIT_SECONDS` at most.
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
            with self.turn(number, _BACKWARD if backward else _FORWARD, marker_file(graph, inputs)):
                return own.compile_fx_inner(graph, inputs, *arguments, **options)

        try:
            return own.compile_fx(graph, inputs, inner_compile=compiled)
        finally:
            self._tell(number, _FORWARD)
            if not comes_later:
                self._tell(number, _BACKWARD)

    @contextmanager
    def turn(self, number: int, part: str, marker: Path) -> Generator[None]:
        """Wait until the machine's first process has compiled a part of a graph. The first process tells the others.

        The file `marker` exists once a process has left the program in the cache.
        """
        key, end = self._key(number, part), time.monotonic() + LONGEST_WAIT_SECONDS
        while not (self._is_first or self._store.check([key]) or marker.exists()) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        try:
            yield
            if self._is_first:
                with suppress(OSError):  # torch, too, goes on if it cannot write its cache
                    marker.parent.mkdir(parents=True, exist_ok=True)
                    marker.touch()
        finally:
            self._tell(number, part)

    def _tell(self, number: int, part: str) -> None:
        if self._is_first:
            self._store.set(self._key(number, part), "")

    def _key(self, number: int, part: str) -> str:
        return f"samestep/programs/{self._machine}/{number}/{part}"


def marker_file(graph: GraphModule, inputs: Sequence[Any]) -> Path:
    """Return the file beside TorchInductor's cache that exists once a graph is compiled.

    Its name depends on the graph's code, its inputs, and the compiler's settings. If TorchInductor's own key differs, a
    process compiles by itself.
    """
    kinds = [
        (str(value.shape), str(value.dtype), str(value.stride()), value.device.type)
        if torch.is_tensor(value)
        else value
        for value in inputs
    ]
    passes: Any = inductor.post_grad_custom_post_pass  # as `tuning.prepare` sets it
    gpus = {torch.cuda.get_device_name(value.device) for value in inputs if torch.is_tensor(value) and value.is_cuda}
    how = torch.__version__, sorted(inductor.save_config_portable().items()), passes and passes.uuid(), gpus
    return Path(cache_dir(), "samestep", hashlib.sha256(repr((graph.code, kinds, how)).encode()).hexdigest())


def inductor_compiler() -> Any:
    """Return TorchInductor's compiler. Its import takes as long as torch's, so only processes that compile do it."""
    return importlib.import_module("torch._inductor.compile_fx")


_joined: Shared | None = None


def share(store: Store, place: RankInfo) -> None:
    """Share programs from now on, once this process has met the others."""
    global _joined
    _joined = Shared(store, place)


def compiler(*, shared: bool) -> "str | Shared":
    """Return the backend for `torch.compile`, `shared` with this contender's other processes or not.

    Without torch's cache, programs are not shared.
    """
    caches = inductor.fx_graph_cache and not inductor.force_disable_caches
    return _joined if shared and caches and _joined is not None else "inductor"


def use_traces(*, wanted: bool) -> None:
    """Let `torch.compile` take traced programs from its cache, if `wanted`, so that nothing is traced again.

    Torch drops guards that hold in one process only, and says so for each. They tell programs apart that share a cache.
    So all processes that share it must trace the same program.
    """
    dynamo.caching_precompile = wanted
    if wanted:
        logging.getLogger("torch._dynamo.guards").setLevel(logging.ERROR)


def keep_traces() -> None:
    """Keep what `torch.compile` has traced and compiled, if `use_traces` wants it.

    A program in several parts is not kept, because one from the cache counts no parts and could not be told from a
    whole one. Torch cannot write the kernels of a GPU that it has loaded, only those that it has compiled.
    """
    compiled = counters["frames"]["ok"] and not counters["inductor"]["fxgraph_cache_hit"]
    if dynamo.caching_precompile and compiled and not counters["graph_break"]:
        importlib.import_module("torch._dynamo.precompile_context").PrecompileContext.save_to_dynamo_cache()


def run_first(
    program: Callable[..., Any], compile_again: Callable[[], Callable[..., Any]], method: Any, *inputs: torch.Tensor
) -> tuple[Callable[..., Any], Any]:
    """Run the `program` of a method for the first time. Return the program that ran, and its result.

    If a loaded program does not fit, torch fails before it runs, because it holds the names. Another one is compiled.
    """
    try:
        return program, program(*inputs)
    except (AssertionError, InternalTorchDynamoError):
        if not counters["dynamo_cache"]["dynamo_cache_hit"]:
            raise
    _drop_traces(method)
    program = compile_again()
    return program, program(*inputs)


def load_or_trace(compile_method: Callable[[], Callable[..., Any]], method: Any) -> Callable[..., Any]:
    """Return the compiled method. If torch cannot read the program that it has kept, drop it and trace again.

    Torch 2.11 cannot read one that calls a function with a default argument.
    """
    try:
        return compile_method()
    except Exception:  # whatever its reader of pickles raises
        if not counters["dynamo_cache"]["dynamo_cache_hit"]:
            raise
    _drop_traces(method)
    return compile_method()


def _drop_traces(method: Any) -> None:
    """Drop the loaded program of a method, with the names that it has in the method's module, and load no more."""
    dynamo.caching_precompile = False
    counters.clear()
    evaluation: Any = importlib.import_module("torch._C._dynamo.eval_frame")
    evaluation._reset_precompile_entries(method.__func__.__code__)
    names: dict[str, Any] = method.__func__.__globals__
    for name in [name for name in names if name.startswith(_INSTALLED)]:
        del names[name]


def count_frozen() -> int:
    """Return the number of this process's programs that hold weights as constants: modules with their names."""
    codecache: Any = sys.modules.get("torch._inductor.codecache")
    modules: list[Any] = codecache.PyCodeCache.modules if codecache else []
    return sum(any(name.startswith(_FROZEN) for name in vars(module)) for module in modules)


def count() -> int:
    """Return the number of programs of this process, traced or loaded."""
    return counters["frames"]["ok"] + counters["dynamo_cache"]["dynamo_cache_hit"]
