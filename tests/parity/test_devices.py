"""Several devices train as one does: virtual ones of JAX's, processes of torch's, each backend in its worker."""

import re
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import psutil
import pytest
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch
from torch._inductor import config as inductor

from compare.base import commands, communication, descriptions, process_group, workloads
from compare.base.interface import ContenderFailed
from compare.data import dataset_file, datasets
from compare.execution.child import Child
from compare.settings import tunings
from jaxbackend import exchange
from tests.parity import twins
from tests.parity.devices import BATCH, LIMIT, WORKLOAD, Recorder, distance, printed, recorded
from torchbackend import models, precision, tuning
from torchbackend.only import buckets, graph_passes, modules

pytestmark = pytest.mark.xdist_group("devices")  # their children are started once

ROUNDING = 1e-14  # no more than that is a gradient which cancels, of a bias before batch norm
JOINT = "compiled-autograd+overlap-exchanges"
WAYS = {"jax": ("sharded", "pmap"), "torch": ("ddp",)}


@pytest.mark.parametrize(
    ("backend", "tuning", "devices"),
    [
        ("jax", "stock+sharded", 2),
        ("jax", "compiled+sharded+steps-per-dispatch=2", 4),
        ("jax", "compiled+pmap+steps-per-dispatch=2", 2),
        ("jax", "stock+pmap", 4),
        ("jax", "stock+pmap+overlap-exchanges", 2),
        ("jax", "stock+sharded+overlap-exchanges", 2),
        pytest.param("jax", "stock+sharded+rematerialisation", 2, marks=pytest.mark.thorough),
        ("torch", "stock+ddp", 2),
        ("torch", "stock+ddp+rematerialisation", 2),
        pytest.param("torch", "compiled+ddp", 2, marks=pytest.mark.thorough),
        pytest.param("torch", "compiled+ddp+overlap-reduction=off", 2, marks=pytest.mark.thorough),
        pytest.param("torch", "compiled+ddp+overlap-reduction=off+overlap-exchanges", 2, marks=pytest.mark.thorough),
        pytest.param("torch", f"compiled+ddp+{JOINT}", 2, marks=pytest.mark.thorough),
        pytest.param("torch", "compiled+ddp+compiled-autograd+channels-last", 2, marks=pytest.mark.thorough),
        pytest.param("torch", "compiled+ddp+compiled-autograd+rematerialisation", 2, marks=pytest.mark.thorough),
        pytest.param("torch", "compiled+ddp+overlap-exchanges", 2, marks=pytest.mark.thorough),
        pytest.param("torch", "compiled+ddp+rematerialisation", 2, marks=pytest.mark.thorough),
    ],
)
def test_devices_with_synchronised_batch_norm_train_as_one_does(
    recorder: Recorder, backend: str, tuning: str, devices: int
):
    assert distance(recorder.record(backend, tuning, devices), recorder.record(backend, "stock")) <= LIMIT


def test_a_compiled_model_of_one_stage_trains_as_on_one_device(recorder: Recorder):
    """Show the same of a compiled step in a third of the time: each kernel takes a C++ compiler a second."""
    model = replace(WORKLOAD.model, arguments={**WORKLOAD.model.arguments, "widths": (4,)})
    described = descriptions.to_json(replace(WORKLOAD, model=model))
    one, two = (
        replace(recorder.spec("torch", tuning, count, "sync"), described=described)
        for tuning, count in (("stock", 1), (f"compiled+ddp+{JOINT}", 2))
    )
    with closing(recorder.started("torch")) as child:  # torch traces otherwise once it reduces within a backward pass
        together = recorded(child, two, recorder.folder)
    assert distance(together, recorded(recorder.child("torch"), one, recorder.folder)) <= LIMIT


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["convnext-tiny", "mobilenet-v2", "unet"])
def test_every_kind_of_layer_is_split(recorder: Recorder, name: str, accumulate: int):
    real = workloads.get(name)
    image = 17, 17, 3
    narrow = replace(real, name=name, model=twins.narrowed(real.model, image=image, classes=5))
    dataset = datasets.load(narrow, folder=None, seed=0, batch_size=BATCH)
    dataset_file.save(dataset, recorder.folder / f"{name}.safetensors")
    described, data = descriptions.to_json(narrow), str(recorder.folder / f"{name}.safetensors")
    one_device, two_devices = (
        replace(recorder.spec("jax", tuning, count, "sync"), described=described, data=data, accumulate=accumulate)
        for tuning, count in (("stock", 1), ("stock+sharded", 2))
    )
    one, two = (recorded(recorder.child("jax"), spec, recorder.folder) for spec in (one_device, two_devices))
    some = [key for key, array in one.items() if np.linalg.norm(array) > ROUNDING]
    assert distance({key: two[key] for key in some}, {key: one[key] for key in some}) <= LIMIT


@pytest.mark.thorough
def test_a_compiled_model_that_is_cut_at_its_buckets_is_recorded(recorder: Recorder):
    """Its first bucket ends after a max-pool. Recording the pool's view failed in torch 2.11."""
    wide = replace(WORKLOAD, model=replace(workloads.get("cifar-cnn").model, image=WORKLOAD.model.image))
    stock, compiled = (
        recorded(
            recorder.child("torch"),
            replace(recorder.spec("torch", tuning, 2, "sync", "float32"), described=descriptions.to_json(wide)),
            recorder.folder,
        )
        for tuning in ("stock+ddp", "compiled+ddp")
    )
    assert distance(compiled, stock) <= 1e-3


def test_the_two_backends_agree_on_two_devices(recorder: Recorder):
    torch = recorder.record("torch", "stock+ddp", 2)
    assert distance(recorder.record("jax", "stock+sharded", 2), torch) <= LIMIT


def test_local_batch_norm_is_the_same_in_both_backends_and_not_that_of_one_device(recorder: Recorder):
    mapped = recorder.record("jax", "stock+pmap", 2, "local")
    assert distance(mapped, recorder.record("torch", "stock+ddp", 2, "local")) <= LIMIT
    assert distance(mapped, recorder.record("jax", "stock")) > 0.01
    several = recorder.record("jax", "compiled+pmap+steps-per-dispatch=2", 2, "local")
    assert distance(several, mapped) <= LIMIT


@pytest.mark.parametrize(("backend", "way"), [(backend, way) for backend, ways in WAYS.items() for way in ways])
def test_settings_tell_how_a_batch_is_split(recorder: Recorder, backend: str, way: str):
    child = recorder.child(backend)
    child.call(commands.Open(spec=recorder.spec(backend, f"stock+{way}", 2, "sync")), 120)
    child.call(commands.Block(steps=2), 120)
    found = child.call(commands.Settings(), 120)
    told = {name: found[name] for name in ("parallel", "devices", "batch_norm", "batch_size", "reduction_dtype")}
    split = {"parallel": way, "devices": 2, "batch_norm": "sync", "batch_size": BATCH, "reduction_dtype": "float64"}
    assert told == split
    # DistributedDataParallel has buckets of its own, and XLA needs a GPU's scheduler.
    assert found["overlap-reduction"] is (way == "ddp")
    proof = child.call(commands.ProveWork(steps=2), 120)
    assert (proof.dispatched, proof.not_finite) == (proof.exported, None)
    absent = child.call(commands.MeasureCommunication(steps=2), 120)  # every process is asked for its kernels
    assert absent == communication.Communication(reason="the framework's profiler showed no kernels of a device")


def child_of(recorder: Recorder, backend: str) -> AbstractContextManager[Child]:
    """Return the shared child of jax, but a new one of torch: its processes train on one number of devices only."""
    return nullcontext(recorder.child(backend)) if backend == "jax" else closing(recorder.started(backend))


@pytest.mark.parametrize(("backend", "way"), [(backend, way) for backend, ways in WAYS.items() for way in ways])
def test_one_device_adds_up_nothing(recorder: Recorder, backend: str, way: str):
    with child_of(recorder, backend) as child:
        child.call(commands.Open(spec=recorder.spec(backend, f"stock+{way}", 1, "sync")), 120)
        child.call(commands.Block(steps=2), 120)
        found = child.call(commands.Settings(), 120)
        assert (found["devices"], found["reduction_dtype"], found["overlap-reduction"]) == (1, None, False)
        assert found["parallel"] == ("none" if backend == "torch" else way)  # DistributedDataParallel would only cost


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("backend", "tuning", "knobs"),
    [
        ("jax", "stock+pmap", ["overlap-exchanges"]),
        ("jax", "stock+sharded", ["overlap-exchanges"]),
        pytest.param("torch", "compiled+ddp", ["compiled-autograd", "overlap-exchanges"], marks=pytest.mark.thorough),
    ],
)
def test_settings_tell_whether_exchanges_overlap(
    recorder: Recorder, backend: str, tuning: str, knobs: list[str], devices: int
):
    with child_of(recorder, backend) as child:
        child.call(commands.Open(spec=recorder.spec(backend, "+".join([tuning, *knobs]), devices, "sync")), 120)
        child.call(commands.Block(steps=2), 120)
        found = child.call(commands.Settings(), 120)
        assert [found[name] for name in knobs] == [devices == 2] * len(knobs)


@pytest.mark.parametrize(
    ("asked", "way"),
    [
        ("compiled+ddp", True),  # cut at the buckets of gradients
        ("compiled+ddp+overlap-reduction=off", False),
        ("compiled+ddp+compiled-autograd", "python_reducer"),
    ],
)
def test_gradients_are_reduced_by_the_way_that_is_asked_for(asked: str, way: bool | str):
    with dynamo.patch(optimize_ddp="no_optimization"), inductor.patch(post_grad_custom_post_pass=None):
        twins.session("torch", tuning=asked)
        assert dynamo.optimize_ddp == way
        assert graph_passes.uses_pass(buckets.join) is (way == "python_reducer")


@pytest.mark.parametrize(("backend", "way"), [(backend, way) for backend, ways in WAYS.items() for way in ways])
def test_gradients_are_added_up_over_devices_in_the_parameters_dtype(recorder: Recorder, backend: str, way: str):
    recorded = recorder.record(backend, f"stock+{way}", 2, precision="bfloat16")
    kernels = [
        array.astype(np.float32) for name, array in recorded.items() if re.match("step1/gradient/.*kernel", name)
    ]
    last = [np.mean(array.view(np.uint32) & 0xFFFF != 0) for array in kernels]  # places that bfloat16 has not
    assert kernels
    assert min(last) > 0.1


SEEN_BY_JAX = """
import re
import numpy as np
import pytest
from jaxbackend import tuning
from tests.parity import twins

prepared, prepare = [], tuning.prepare
tuning.prepare = lambda knobs, device: prepared.append(device.id)
session = twins.session("jax", tuning="stock+sharded", devices=2)
tuning.prepare = prepare
print(prepared)

images = twins.batches("digits-cnn", 1)[0].values()[:5]
assert len(images) == 5
print(np.allclose(session.logits(images), twins.session("jax").logits(images), rtol=1e-12, atol=0))

twins.narrow(pytest.MonkeyPatch())
session = twins.session("jax", "cifar-cnn", "compiled+sharded", devices=2, precision="float32")
session.feed(twins.batches("cifar-cnn", 1))
program = session._lowered().compile().as_text()
names = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
print(len(re.findall(rf" (?:{names})(?:-start)?\\(", program)))
"""


@pytest.fixture(scope="module")
def seen_by_jax() -> list[str]:
    """Return the lines of one script that sees three devices, because a process takes seconds to import JAX."""
    return printed(SEEN_BY_JAX, devices=3).splitlines()


def test_every_device_that_is_used_is_made_ready_for_captured_graphs(seen_by_jax: list[str]):
    assert seen_by_jax[0] == "[0, 1]"


def test_images_that_devices_do_not_share_evenly_are_evaluated(seen_by_jax: list[str]):
    assert seen_by_jax[1] == "True"


def test_sharded_batch_norm_exchanges_once_forward_and_once_backward(seen_by_jax: list[str]):
    layers, gradients = 4, 1
    assert seen_by_jax[2] == str(2 * layers + gradients)


SEEN_BY_TORCH = """
import re
import warnings
from dataclasses import replace
import torch
import torch.distributed as dist
from torch import nn
from torch._functorch import config as functorch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import run_fw_bw_and_get_code
from torch.testing._internal.distributed.fake_pg import FakeStore
from compare.base.process_group import RankInfo
from compare.settings import tunings
from tests.parity import twins
from torchbackend import gradients, layers, precision, tuning
from torchbackend.only import modules
from torchbackend.session import TorchSession

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
for batch_norm in ("sync", "local"):
    spec = twins.spec("torch", "cifar-cnn", "stock+ddp", devices=2, batch_norm=batch_norm)
    TorchSession(spec, RankInfo(0, 2, 2))
    print(functorch.ban_recompute_used_far_apart)

policy = replace(precision.policy("bfloat16", "cpu"), synchronised=True)
norms = [layers.BatchNorm(8, policy=policy) for _ in range(3)]
convolutions = [nn.Conv2d(8, 8, 3, padding=1) for _ in norms]
knobs = tunings.resolve("torch", "compiled+ddp", "cpu", "cifar-cnn")
tuning.prepare(knobs, "cpu", exchanges=modules.has_exchanges(nn.ModuleList(norms)))


def objective(x):
    with torch.autocast("cpu", torch.bfloat16):
        for convolution, norm in zip(convolutions, norms):
            x = gradients.relu_normalised(norm(convolution(x)))
    return x.sum()


with warnings.catch_warnings(action="error"):  # of a name that torch has given up
    objective(torch.ones(4, 8, 6, 6)).backward()
compiled = torch.compile(objective, dynamic=False)
AsyncCompile.cpp_pybinding = lambda *_: lambda *_: None  # only the programs are read
_, programs = run_fw_bw_and_get_code(lambda: compiled(torch.ones(4, 8, 6, 6)))
names = ("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor")
called = [len(re.findall(fr"_c10d_functional\\.{name}(?:_|_out)?\\.default\\(", "".join(programs))) for name in names]
print(called, len(re.findall(r"torch\\.bool", programs[0])))
"""


@pytest.fixture(scope="module")
def seen_by_torch() -> list[str]:
    """Return the lines of one script with two processes that exchange nothing."""
    return printed(SEEN_BY_TORCH, devices=1).splitlines()


def test_the_compiler_is_told_of_exchanges(seen_by_torch: list[str]):
    assert seen_by_torch[:2] == ["False", "True"]


def test_compiled_batch_norm_exchanges_once_forward_and_once_backward_and_keeps_no_masks(seen_by_torch: list[str]):
    assert seen_by_torch[2] == "[3, 3, 0] 0"


@pytest.mark.parametrize(("name", "kept"), [("cifar-cnn", False), ("convnext-tiny", True), ("digits-cnn", True)])
def test_only_where_there_are_exchanges_more_is_computed_again(name: str, *, kept: bool):
    synchronised = replace(precision.policy("float32", "cpu"), synchronised=True)
    with functorch.patch(ban_recompute_used_far_apart=not kept):
        found = modules.has_exchanges(models.build(workloads.get(name).model, synchronised))
        tuning.prepare(tunings.resolve("torch", "stock", "cpu", name), "cpu", exchanges=found)
        assert functorch.ban_recompute_used_far_apart is kept


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_a_plan_knows_which_models_have_batch_norm(name: str):
    model = twins.narrowed(workloads.get(name).model)
    synchronised = replace(precision.policy("float32", "cpu"), synchronised=True)
    found = modules.has_exchanges(models.build(model, synchronised))
    assert (model.family in workloads.WITH_BATCH_NORM) is found


@dataclass
class Program:
    """A program as XLA compiles one for a GPU, with one reduction of a kind."""

    reduced: str
    kind: str

    def as_text(self) -> str:
        return """
  %all-reduce-start.5 = f32[75]{0} all-reduce-start(%wrapped_concatenate.5), channel_id=18, to_apply=%region_27.27
  %all-reduce.3 = (f32[64]{0}, f32[64]{0}) all-reduce(%fusion.5, %fusion.6), channel_id=12, to_apply=%region_2.2
  %all-reduce-start.6 = KIND[287840]{0} REDUCED-start(%wrapped_concatenate.6), channel_id=19, to_apply=%add.6
  %all-reduce-done.6 = KIND[287840]{0} REDUCED-done(%all-reduce-start.6)
""".replace("KIND", self.kind).replace("REDUCED", self.reduced)


@pytest.mark.parametrize("reduced", ["all-reduce", "reduce-scatter"])
@pytest.mark.parametrize(("kind", "dtype"), [("bf16", "bfloat16"), ("f32", "float32")])
def test_the_narrowest_dtype_that_a_program_reduces_is_told(reduced: str, kind: str, dtype: str):
    assert exchange.reduction_dtype(Program(reduced, kind)) == dtype


@pytest.mark.parametrize("way", WAYS["jax"])
def test_virtual_devices_do_not_wait_for_each_other_forever(recorder: Recorder, way: str):
    child = recorder.child("jax")
    child.call(commands.Open(spec=recorder.spec("jax", f"stock+{way}", 4, "sync")), 120)
    assert child.call(commands.Block(steps=200), 60) > 0


def test_devices_that_are_not_there_are_refused_by_name(recorder: Recorder):
    child = recorder.started("jax")
    with pytest.raises(ContenderFailed, match=r"5 cpu devices are needed; jax sees 4") as failure:
        child.call(commands.Open(spec=recorder.spec("jax", "stock+pmap", 5, "sync")), 120)
    assert failure.value.status == "refused"


def ranks(child: Child) -> list[psutil.Process]:
    """Return the further processes of a contender."""
    return [each for each in psutil.Process(child.pid).children() if "--rank" in each.cmdline()]


@pytest.mark.parametrize(
    ("signal", "deadline", "status", "reason"),
    [
        ("SIGKILL", 60, "crash", r"rank 1 of 2: killed by signal 9 \(SIGKILL\)"),
        ("SIGSTOP", 2, "timeout", "deadline of 2 s"),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_its_contender_with_all_its_processes(
    recorder: Recorder, signal: str, deadline: float, status: str, reason: str
):
    child = recorder.started("torch", {process_group.FURTHER: '{"local_world_size": 2, "device": "cpu"}'})
    (begun,) = ranks(child)
    child.call(commands.Open(spec=recorder.spec("torch", "stock+ddp", 2, "sync")), 120)
    assert ranks(child) == [begun], "it was begun while torch was imported"
    family = psutil.Process(child.pid).children(recursive=True)
    begun.send_signal({"SIGKILL": 9, "SIGSTOP": 19}[signal])
    with pytest.raises(ContenderFailed, match=reason) as failure:
        child.call(commands.Block(steps=2), deadline)
    assert failure.value.status == status
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
