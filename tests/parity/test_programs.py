"""A contender's processes in torch share compiled programs: a machine's first compiles, the others load."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.utils import fresh_inductor_cache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage] -- documented there

from compare.base import commands
from compare.base.process_group import RankInfo
from compare.data import dataset_file, synthetic
from compare.data.datasets import Dataset
from compare.execution.child import Child
from compare.worker import recording
from tests.parity import twins
from tests.parity.devices import Recorder
from torchbackend.only import buckets, graph_passes, programs
from torchbackend.only.programs import Shared

PREPARED = """
import sys
from compare.settings import tunings
from torchbackend import backend, session, tuning
for name in ("stock", "compiled"):
    tuning.prepare(tunings.resolve("torch", name, "cpu", "digits-cnn"), "cpu", exchanges=False)
    print("torch._inductor.compile_fx" in sys.modules)
"""

TRAINED = """
from torch._dynamo import package


def run(*words):
    if "unreadable" in words:
        package.load_guards_state = lambda guards: guards.no_reader
    session = twins.session("torch", tuning="compiled", precision="bfloat16", keeps_traces=True)
    if "misfit" in words:
        next(session._step.model.parameters()).requires_grad_(False)
    twins.trained(session, twins.batches("digits-cnn", 2), 3)
    print(counters["frames"]["ok"], session.settings()["compile"], session.losses().tolist())
"""
"""Trains, and prints how many programs were traced, whether steps are compiled, and the losses."""

ANSWERED = """
def run(seed, *sizes):
    plain = twins.session("torch", precision="float32", task="infer")
    compiled = twins.session("torch", tuning="compiled", precision="float32", task="infer", keeps_traces=True)
    for session in (compiled, plain):
        session.assign(weights.randomise(session.signature(), int(seed)))
    for size in map(int, sizes):
        losses = [
            float(twins.trained(session, twins.batches("digits-cnn", 1, size=size), 1).losses()[-1])
            for session in (compiled, plain)
        ]
        print(counters["frames"]["ok"], compiled.settings()["compile"], abs(losses[0] - losses[1]) < 1e-5)
"""
"""Answers requests of several batch sizes. Prints for each how many programs were traced, and two findings."""

FORKED = """
import os
import sys
import torch._inductor.compile_fx
import torchbackend.backend
from compare.data import weights
from tests.parity import twins
from torch._dynamo.utils import counters
DEFINITION
for words in sys.argv[1:]:
    if (pid := os.fork()) == 0:
        run(*words.split())
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print("end of a process", flush=True)
"""
"""Runs a program in one process after the other, which import no framework again."""

FIRST, SECOND, ELSEWHERE = (RankInfo(rank, 4, 2) for rank in (0, 1, 2))


@pytest.fixture
def store() -> HashStore:
    return HashStore()


@pytest.fixture
def empty_cache(compiler: None) -> Iterator[None]:
    """Start without compiled programs, in the cache and in this process."""
    del compiler
    torch.compiler.reset()
    counters.clear()
    with fresh_inductor_cache():
        yield
    torch.compiler.reset()


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "samestep" / "word"


def list_announced(store: HashStore) -> set[str]:
    """Return the parts of the first machine's first two graphs that its first process has announced."""
    keys = {f"{number}/{part}" for number in (0, 1) for part in ("forward", "backward")}
    return {key for key in keys if store.check([f"samestep/programs/0/{key}"])}


def trained(shared: Shared) -> torch.Tensor:
    """Return the gradient of a program compiled with a backend."""
    x = torch.linspace(0, 1, 7, requires_grad=True)
    torch.compile(lambda x: (x.sin() * x).sum(), dynamic=False, backend=shared)(x).backward()
    assert x.grad is not None
    return x.grad


def test_a_machine_s_first_process_compiles_before_the_others(store: HashStore, marker: Path) -> None:
    done, begun = list[str](), threading.Event()

    def second() -> None:
        begun.set()
        with Shared(store, SECOND).turn(0, "forward", marker):
            done.append("second")

    thread = threading.Thread(target=second)
    with Shared(store, FIRST).turn(0, "forward", marker):
        thread.start()
        begun.wait()
        thread.join(0.2)
        with Shared(store, ELSEWHERE).turn(0, "forward", marker.with_name("other")):  # waits only for its own machine
            done.append("elsewhere")
            assert not store.check(["samestep/programs/1/0/forward"])
        assert store.check(["samestep/programs/1/0/forward"])
        done.append("first")
    thread.join()
    assert done == ["elsewhere", "first", "second"]


def test_a_process_that_has_waited_for_long_compiles_by_itself(
    store: HashStore, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LONGEST_WAIT_SECONDS", 0.1)
    with Shared(store, SECOND).turn(0, "backward", marker):
        assert list_announced(store) == set(), "only the first process tells"


@pytest.mark.usefixtures("empty_cache")
def test_what_the_first_compiled_the_next_finds(store: HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = trained(Shared(store, FIRST))
    assert list_announced(store) == {"0/forward", "0/backward"}
    assert counters["inductor"]["fxgraph_cache_miss"] == 2
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(programs, "LONGEST_WAIT_SECONDS", 0.0)
    assert torch.equal(trained(Shared(store, SECOND)), gradient)
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


def test_nobody_waits_for_what_is_kept(store: HashStore, marker: Path) -> None:
    with pytest.raises(ArithmeticError), Shared(store, FIRST).turn(0, "forward", marker):
        raise ArithmeticError
    assert not marker.exists(), "nothing was compiled"
    with Shared(store, FIRST).turn(1, "forward", marker):
        pass
    with Shared(store, SECOND).turn(2, "forward", marker):
        assert not store.check(["samestep/programs/0/2/forward"])


def test_word_that_cannot_be_left_fails_no_program(store: HashStore, marker: Path) -> None:
    marker.parent.write_text("a file in place of the folder")
    with Shared(store, FIRST).turn(0, "forward", marker):
        pass
    assert store.check(["samestep/programs/0/0/forward"])


def test_a_graph_of_another_gpu_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    with FakeTensorMode():
        inputs = [torch.empty(2, device="cuda")]
    words = set[Path]()
    for name in ("H100", "H200", "H200"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        words.add(programs.marker_file(graph, inputs))
    assert len(words) == 2


@pytest.mark.usefixtures("empty_cache")
def test_a_graph_is_known_by_its_code_its_inputs_and_how_it_is_compiled() -> None:
    words = list[Path]()

    def noted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        words.append(programs.marker_file(graph, inputs))
        for changes in (
            {"conv_1x1_as_mm": True},
            {"post_grad_custom_post_pass": graph_passes.GraphPasses(buckets.join)},
        ):
            with inductor.patch(changes):
                assert programs.marker_file(graph, inputs) not in words
        return graph

    for function, x in (
        (torch.sin, torch.ones(3)),
        (torch.sin, torch.zeros(3)),
        (torch.cos, torch.ones(3)),
        (torch.sin, torch.ones(4)),
        (torch.sin, torch.ones(3, dtype=torch.float64)),
        (torch.sin, torch.ones(6)[::2]),
    ):
        torch.compiler.reset()
        torch.compile(lambda x, function=function: function(x), dynamic=False, backend=noted)(x)
    assert words[0] == words[1]
    assert len(set(words)) == 5
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) in words[0].parents


@pytest.mark.usefixtures("empty_cache", "without_kernels")
def test_a_backward_pass_that_is_not_compiled_yet_is_waited_for(store: HashStore) -> None:
    function = torch.compile(lambda x: x.sin().sum(), dynamic=False, backend=Shared(store, FIRST))
    loss = function(torch.ones(3, requires_grad=True))
    assert list_announced(store) == {"0/forward"}
    loss.backward()
    assert list_announced(store) == {"0/forward", "0/backward"}
    function(torch.ones(4))
    assert list_announced(store) == {"0/forward", "0/backward", "1/forward", "1/backward"}, "nothing to differentiate"


@pytest.mark.usefixtures("empty_cache")
def test_nobody_waits_for_what_the_first_found_or_could_not_compile(
    store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Shared(store, FIRST)

    def failing(*_: object, **__: object) -> None:
        raise ArithmeticError

    compiler = programs.inductor_compiler()
    monkeypatch.setattr(compiler, "compile_fx", failing)
    with pytest.raises(Exception, match="ArithmeticError"):
        trained(shared)
    assert list_announced(store) == {"0/forward", "0/backward"}
    monkeypatch.setattr(compiler, "compile_fx", lambda graph, _, **__: graph.forward)  # as from a cache
    trained(shared)
    assert list_announced(store) == {"0/forward", "0/backward", "1/forward", "1/backward"}


def test_programs_are_shared_once_processes_have_met_where_torch_keeps_any(
    store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_joined", None)
    assert programs.compiler(shared=True) == "inductor"
    programs.share(store, FIRST)
    assert isinstance(programs.compiler(shared=True), Shared)
    assert programs.compiler(shared=False) == "inductor"
    for option in ({"fx_graph_cache": False}, {"force_disable_caches": True}):
        with inductor.patch(option):
            assert programs.compiler(shared=True) == "inductor"


def test_who_compiles_nothing_does_not_load_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["", "+overlap-reduction=off", "+compiled-autograd"])
def test_of_two_processes_the_second_compiles_nothing(tmp_path: Path, way: str) -> None:
    recorder, said = Recorder(tmp_path), tmp_path / "said"
    added = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCH_LOGS": "+torch._inductor.codecache"}
    with closing(Child("torch", "torchbackend", {**added, "TORCH_LOGS_OUT": str(said)}, tmp_path)) as child:
        child.greet(120)
        child.call(commands.Open(spec=recorder.spec("torch", f"compiled+ddp{way}", 2, "sync")), 120)
        child.call(commands.Block(steps=2), 280)
    lines = said.read_text()
    first, second = (re.findall(rf"\[rank{rank}\].*fx graph cache (miss|hit)", lines) for rank in (0, 1))
    assert first
    assert second == ["hit"] * len(first)


def test_programs_that_were_traced_before_are_not_traced_again(tmp_path: Path) -> None:
    first, again, unreadable, misfit = run_with_traces(TRAINED, tmp_path, "", "", "unreadable", "misfit")
    traced, compiled, losses = first.split(maxsplit=2)
    assert (traced, compiled) == ("1", "True")
    assert again == f"0 True {losses}"
    assert unreadable == first
    assert misfit.split()[:2] == ["1", "True"]  # the kept program does not fit, because one tensor differs
    assert misfit.split(maxsplit=2)[2] != losses


def test_programs_of_requests_are_traced_once_for_each_batch_size(tmp_path: Path) -> None:
    first, again = run_with_traces(ANSWERED, tmp_path, "1 2 8", "2 8 2 5")
    assert first.splitlines() == ["1 True True", "2 True True"]
    assert again.splitlines() == ["0 True True", "0 True True", "1 True True"]


def run_with_traces(program: str, cache: Path, *runs: str) -> list[str]:
    """Return what a program prints in each of several processes with this cache, each with its own words."""
    added = {"TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD": "1", "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", FORKED.replace("DEFINITION", program), *runs]
    done = subprocess.run(command, env=os.environ | added, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.split("end of a process\n")
    assert (len(printed), last) == (len(runs), "")
    return [text.strip() for text in printed]


@pytest.mark.usefixtures("empty_cache", "without_kernels")
def test_a_record_finds_the_timed_path_that_another_process_compiles(tmp_path: Path) -> None:
    data = tmp_path / "data.safetensors"
    dataset_file.save(Dataset(*synthetic.make((8, 8, 1), classes=10, seed=1, train=64, test=8), ""), data)
    spec = twins.spec("torch", tuning="compiled", precision="bfloat16", data=str(data))
    recording.compile_timed_path(twins.BACKENDS["torch"], spec, 3, evenly=False)
    kept, compiled = counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]
    torch.compiler.reset()
    counters.clear()
    twins.recorded(twins.BACKENDS["torch"], spec, 3)
    assert (kept, compiled) == (0, 2)
    assert counters["inductor"]["fxgraph_cache_hit"] == 2
