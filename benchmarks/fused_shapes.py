"""Time fused 1x1 convolutions against the library's product with separate compiled passes, shape by shape, on a GPU.

Run `python benchmarks/fused_shapes.py --seconds 100`. It prints one line per shape as it goes, forward first, then the
gradients, and the sums over ResNet-50. Values are checked against float64 before they are timed. Each contender is one
CUDA graph. Contenders alternate, and the L2 cache is overwritten before each sample. The least bytes and operations of
each fused kernel give its predicted time.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compare.kernels import launches
from compare.kernels.launches import Blocks, Launch, Product

CANDIDATES = {
    "multiply": (
        Blocks(64, 64, 64, 4, 4, 3),
        Blocks(128, 64, 64, 4, 4, 2),
        Blocks(64, 64, 128, 4, 4, 2),
        Blocks(64, 128, 64, 4, 3, 3),
        Blocks(64, 128, 128, 4, 3, 2),
        Blocks(64, 256, 64, 4, 2, 2),
        Blocks(128, 64, 128, 8, 4),
        Blocks(128, 128, 128, 8, 3),
        Blocks(128, 256, 128, 8, 2),
    ),
    "data_gradient": (
        Blocks(64, 64, 64, 4, 3, 3),
        Blocks(64, 64, 64, 4, 4, 2),
        Blocks(128, 64, 64, 8, 3),
        Blocks(64, 64, 128, 4, 2, 2),
        Blocks(64, 128, 64, 4, 3, 2),
        Blocks(64, 128, 128, 4, 2, 2),
        Blocks(128, 128, 64, 8, 3),
    ),
    "weight_gradient": (
        Blocks(64, 64, 128, 4, 3, 2),
        Blocks(64, 64, 256, 8, 3),
        Blocks(64, 128, 64, 4, 3, 2),
        Blocks(64, 128, 128, 8, 3),
        Blocks(64, 256, 64, 8, 3),
    ),
}
"""The block sizes that are timed of each kernel."""
BATCH = 256
EXPECTED_LOSS = 1.2  # a kernel takes this much longer than its bytes or its operations
TENSOR_CORES = 700e12  # operations a second that products reach


@dataclasses.dataclass(frozen=True)
class Case:
    """A product, how many convolutions of the network have it, and whether the batch norm before goes into it."""

    kind: str
    product: Product
    count: int

    @property
    def apply(self) -> bool:
        return self.kind == "last"

    def __str__(self) -> str:
        product = self.product
        return f"{self.kind:8} {product.rows:6}x{product.inner:4}->{product.outer:4} x{self.count}"


def resnet50() -> list[Case]:
    """Return the distinct 1x1 convolutions of ResNet-50 v1.5, the largest images first."""
    cases = []
    before = 64
    for stage, (depth, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        side = 56 >> stage
        rows, wide, stride = BATCH * side * side, 4 * width, 1 if stage == 0 else 2
        cases += [
            Case("last", Product(rows, width, wide), depth),
            Case("first", Product(rows, wide, width), depth - 1),
            Case("first", Product(rows * stride * stride, before, width), 1),
            *([Case("shortcut", Product(rows, before, wide), 1)] if stride == 1 else []),  # others leave out pixels
        ]
        before = wide
    return cases


def moments(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shift = y[y.shape[0] // 2].float()
    shifted = y.float() - shift
    mean = shifted.mean(0)
    return shift + mean, shifted.square().mean(0) - mean.square()


def activate(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.relu((x.float() * scale + bias).to(x.dtype))


def gated_gradient(g: torch.Tensor, y: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    wide = y.float()
    masked = torch.where(wide * factors[3] + factors[4] > 0, g.float(), 0)
    return (masked * factors[0] + wide * factors[1] + factors[2]).to(g.dtype)


def block_sums(
    v: torch.Tensor, skip: torch.Tensor, x: torch.Tensor, source: torch.Tensor, center: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stored = torch.where(x > 0, v + skip, 0)
    masked = stored.float()
    return stored, masked.sum(0), (masked * (source.float() - center)).sum(0)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


class Tensors:
    """Random tensors of one case, and outputs that all kernels share."""

    def __init__(self, case: Case) -> None:
        p = case.product
        generator = torch.Generator("cuda").manual_seed(0)

        def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.randn(shape, device="cuda", dtype=dtype, generator=generator)

        self.x, self.g, self.y = draw(p.rows, p.inner), draw(p.rows, p.outer), draw(p.rows, p.outer)
        self.skip, self.source = draw(p.rows, p.inner), draw(p.rows, p.inner)
        self.weight = draw(p.outer, p.inner) / p.inner**0.5
        # With few bits, no rounding decides on which side of a ReLU a value is.
        self.scale, self.bias = draw(p.inner).sign().float() / 2 + 1, (draw(p.inner).float() * 16).round() / 64
        self.center = draw(p.inner, dtype=torch.float32) / 8
        self.shift = torch.zeros(p.outer, device="cuda")
        self.factors = torch.stack(
            [
                *draw(3, p.outer, dtype=torch.float32),
                draw(p.outer).sign().float() / 2 + 1,
                (draw(p.outer).float() * 16).round() / 64,
            ]
        )
        normalised = self.g, self.y, self.factors
        self.inputs: dict[str, Sequence[torch.Tensor]] = {
            "multiply": (self.x, self.weight, self.scale, self.bias, self.shift),
            "data_gradient": (*normalised, self.weight, self.x, self.center, self.skip, self.source),
            "weight_gradient": (*normalised, self.x),
        }

    def images(self, tensor: torch.Tensor, side: int) -> torch.Tensor:
        """Return a matrix of pixels as channels-last images [N, C, H, W]."""
        return tensor.view(-1, side, side, tensor.shape[1]).permute(0, 3, 1, 2)


def outputs_of(launch: Launch) -> list[torch.Tensor]:
    return [
        torch.empty(shape, device="cuda", dtype=torch.bfloat16 if name in launch.narrow else torch.float32)
        for name, shape in launch.outputs.items()
    ]


def start(launch: Launch, tensors: Tensors, outputs: Sequence[torch.Tensor]) -> None:
    arguments = tensors.inputs[launch.kernel]
    launch.function()[(launch.programs,)](*arguments, *outputs, **launch.constants, num_warps=launch.warps)


def warm(launch: Launch) -> str | None:
    """Compile a kernel. Return why it cannot be compiled."""
    narrow, wide = torch.bfloat16, torch.float32
    vectors = {"scale", "bias", "shift", "factors", "center"}
    names = [name for name in launch.function().arg_names if name not in launch.constants]
    kinds = [
        wide if name in vectors or (name in launch.outputs and name not in launch.narrow) else narrow for name in names
    ]
    try:
        launch.function().warmup(*kinds, grid=(launch.programs,), num_warps=launch.warps, **launch.constants)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-200:]}"
    return None


def captured(run: Callable[[], Any]) -> Callable[[], Any] | None:
    """Return a function that replays what `run` does on the GPU. Nothing, if it fails."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def sample(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return each contender's median milliseconds. The contenders alternate."""
    flushed = torch.empty(2**26, dtype=torch.int32, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in contenders}
    for _, (name, run) in itertools.product(range(rounds), contenders.items()):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flushed.zero_()
        begin.record()
        run()
        end.record()
        events[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(b.elapsed_time(e) for b, e in pairs) for name, pairs in events.items()}


def copy_bandwidth() -> float:
    source, target = (torch.empty(2**30, dtype=torch.uint8, device="cuda") for _ in range(2))
    milliseconds = sample({"copy": lambda: target.copy_(source)}, 10)["copy"]
    return 2 * 2**30 / milliseconds * 1e3


def predicted(bytes_moved: float, operations: float, bandwidth: float) -> float:
    """Return the milliseconds expected of a fused kernel."""
    return 1e3 * EXPECTED_LOSS * max(bytes_moved / bandwidth, operations / TENSOR_CORES)


def error_of(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value.double() - reference).abs().max() / reference.abs().max())


def launches_of(case: Case, processors: int, kernel: str) -> dict[str, Launch]:
    """Return the launches to try, by their block sizes."""
    p, strides = case.product, (1, case.product.inner)
    found: dict[str, Launch] = {}
    for blocks in CANDIDATES[kernel]:
        if blocks.inner > p.inner or blocks.outer > p.outer:
            continue
        name = ",".join(map(str, dataclasses.astuple(blocks)))
        if kernel == "multiply":
            found[name] = launches.multiply(p, blocks, processors=processors, apply=case.apply, weight_strides=strides)
        elif kernel == "weight_gradient":
            found[name] = launches.weight_gradient(p, blocks, processors=processors)
        else:
            found[name] = launches.data_gradient(p, blocks, processors=processors, weight_strides=strides)
    return found


class Shape:
    """One case on the GPU: its checks and its samples."""

    def __init__(self, case: Case, rounds: int) -> None:
        self.case, self.rounds, self.tensors = case, rounds, Tensors(case)
        self.passes = {
            function.__name__: compiled(function) for function in (moments, activate, gated_gradient, block_sums)
        }

    def library_forward(self) -> Mapping[str, Callable[[], Any]]:
        """Return passes and product, by cuDNN and by cuBLAS."""
        p, t = self.case.product, self.tensors
        kernel = t.weight.view(p.outer, p.inner, 1, 1).contiguous(memory_format=torch.channels_last)
        side = int((p.rows / BATCH) ** 0.5)

        def by_cudnn() -> Any:
            a = self.passes["activate"](t.x, t.scale, t.bias) if self.case.apply else t.x
            y = functional.conv2d(t.images(a, side), kernel)
            return self.passes["moments"](y.permute(0, 2, 3, 1).reshape(p.rows, p.outer))

        def by_cublas() -> Any:
            a = self.passes["activate"](t.x, t.scale, t.bias) if self.case.apply else t.x
            return self.passes["moments"](a @ t.weight.T)

        return {"cudnn": by_cudnn, "cublas": by_cublas}

    def library_gradients(self) -> Mapping[str, Callable[[], Any]]:
        p, t = self.case.product, self.tensors
        side = int((p.rows / BATCH) ** 0.5)
        kernel = t.weight.view(p.outer, p.inner, 1, 1).contiguous(memory_format=torch.channels_last)
        gate, sums = self.passes["gated_gradient"], self.passes["block_sums"]

        def by_cudnn() -> Any:
            d = t.images(gate(t.g, t.y, t.factors), side)
            v, w, _ = torch.ops.aten.convolution_backward(
                d, t.images(t.x, side), kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
            )
            return w, sums(v.permute(0, 2, 3, 1).reshape(p.rows, p.inner), t.skip, t.x, t.source, t.center)

        def by_cublas() -> Any:
            d = gate(t.g, t.y, t.factors)
            return d.T @ t.x, sums(d @ t.weight, t.skip, t.x, t.source, t.center)

        return {"cudnn": by_cudnn, "cublas": by_cublas}

    def forward_error(self, launch: Launch, outputs: Sequence[torch.Tensor]) -> float:
        p, t = self.case.product, self.tensors
        y, means, squares = outputs
        ends = [*range(2048), *range(p.rows - 2048, p.rows)]
        a = activate(t.x[ends], t.scale, t.bias) if self.case.apply else t.x[ends]
        mean, variance = join_moments(launch, means.double(), squares.double())
        wide = y.double()
        errors = [
            error_of(y[ends], a.double() @ t.weight.double().T) / 2**-8,
            error_of(variance, wide.var(0, unbiased=False)) / 1e-4,
            float((mean - wide.mean(0)).abs().max() / wide.std()) / 1e-5,
        ]
        return max(errors)

    def gradient_reference(self) -> dict[str, torch.Tensor]:
        """Return the masked gradient of the input, its sums and the weight's gradient, in float64."""
        t = self.tensors
        d = gated_gradient(t.g, t.y, t.factors).double()
        v = torch.where(t.x > 0, d @ t.weight.double() + t.skip, 0)
        return {
            "result": v,
            "sums": v.sum(0),
            "products": (v * (t.source.double() - t.center)).sum(0),
            "parts": t.x.double().T @ d,
        }

    def gradient_error(
        self, launch: Launch, outputs: Sequence[torch.Tensor], reference: Mapping[str, torch.Tensor]
    ) -> float:
        """Return the largest error as a share of its limit. Sums grow with the root of the rows."""
        values = dict(zip(launch.outputs, outputs, strict=True))
        errors = []
        for name, value in values.items():
            if name == "result":
                errors.append(error_of(value, reference[name]) / 2**-7)
            else:
                scale = float(reference[name].abs().max())
                errors.append(float((value.double().sum(0) - reference[name]).abs().max()) / scale / 2**-7)
        return max(errors)


def join_moments(launch: Launch, means: torch.Tensor, squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance from those of each program."""
    counts = torch.tensor(launches.rows_of_walkers(launch), device=means.device, dtype=means.dtype)[:, None]
    rows = counts.sum()
    mean = (counts * means).sum(0) / rows
    return mean, (squares + counts * (means - mean).square()).sum(0) / rows


def least_bytes(case: Case, kernel: str) -> float:
    """Return how many bytes the fused kernel moves at least."""
    p = case.product
    x, y = 2 * p.rows * p.inner, 2 * p.rows * p.outer
    # A data gradient also reads skip, mask and source.
    return {"multiply": x + y, "weight_gradient": x + 2 * y, "data_gradient": 2 * y + 4 * x}[kernel]


def measure(shape: Shape, kernel: str, plan: Mapping[str, Launch], failed: Mapping[int, str]) -> dict[str, float]:
    """Return the milliseconds of all correct block sizes of a kernel."""
    runs: dict[str, Callable[[], Any]] = {}
    reference = None if kernel == "multiply" else shape.gradient_reference()
    shared: dict[tuple[int, ...], torch.Tensor] = {}
    for name, launch in plan.items():
        if id(launch) in failed:
            print(f"      {kernel} {name}: {failed[id(launch)]}", flush=True)
            continue
        outputs = outputs_of(launch)
        for place, (output, shape_of) in enumerate(zip(outputs, launch.outputs.values(), strict=True)):
            outputs[place] = shared.setdefault((place, *shape_of), output)
        try:
            start(launch, shape.tensors, outputs)
            torch.cuda.synchronize()
        except Exception as error:
            print(f"      {kernel} {name}: {type(error).__name__}: {str(error)[:150]}", flush=True)
            if "CUDA" in str(error):
                raise
            continue
        error = (
            shape.forward_error(launch, outputs)
            if reference is None
            else shape.gradient_error(launch, outputs, reference)
        )
        if not error <= 1:
            print(f"      {kernel} {name}: WRONG, {error:.3g} of the limit", flush=True)
            continue

        def run(launch: Launch = launch, outputs: Sequence[torch.Tensor] = outputs) -> Any:
            start(launch, shape.tensors, outputs)
            return [output.sum(0) for output, name in zip(outputs, launch.outputs, strict=True) if name == "parts"]

        replay = captured(run)
        if replay:
            runs[name] = replay
    del reference
    return sample(runs, shape.rounds) if runs else {}


def report(
    case: Case, what: str, separate: Mapping[str, float], fused: Mapping[str, float], guess: float
) -> tuple[float, float]:
    """Print a line, and return the best milliseconds of each side, over the network."""
    library, own = min(separate.values()), min(fused.values(), default=float("inf"))
    best = min(fused, key=lambda name: fused[name], default="none")
    print(
        f"{case} {what:9} separate {library:7.4f} ({', '.join(f'{k} {v:.4f}' for k, v in separate.items())}) "
        f"fused {own:7.4f} predicted {guess:7.4f} ratio {own / library:5.2f}  {best}",
        flush=True,
    )
    return case.count * library, case.count * min(own, library)


def rows_of_plan(case: Case, part: str, library: float, choices: Mapping[str, float]) -> list[str]:
    """Return the entries of a plan for what is faster than the library here, by the names that `main` gives choices."""
    best = min(choices, key=lambda name: choices[name], default="")
    if not best or choices[best] >= library:
        return []
    words = best.split()
    chosen = {"multiply": words[0]} if part == "forward" else {"data_gradient": words[1], "weight_gradient": words[4]}
    p, mask = case.product, {"last": "affine", "first": "plain", "shortcut": "none"}[case.kind]
    return [
        f'    ("{kernel}", {p.inner}, {p.outer}, "{mask}"): Blocks({numbers.replace(",", ", ")}),'
        for kernel, numbers in chosen.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100, help="begin no shape after this time")
    parser.add_argument("--rounds", type=int, default=11, help="samples of each contender")
    parser.add_argument("--only", choices=("forward", "gradients"), help="measure only these kernels")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    options = parser.parse_args()
    begun = time.monotonic()
    torch._dynamo.config.recompile_limit = 256  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.benchmark = True
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copies at {bandwidth / 1e12:.2f} TB/s", flush=True)
    cases = resnet50()
    work: list[tuple[Case, str]] = []
    if options.only != "gradients":
        work += [(case, "forward") for case in cases]
    if options.only != "forward":
        work += [(case, "gradients") for case in cases if case.kind == "first"]
    kernels = {"forward": ["multiply"], "gradients": ["data_gradient", "weight_gradient"]}
    plans = {
        (case, part): {kernel: launches_of(case, processors, kernel) for kernel in kernels[part]} for case, part in work
    }
    pool = ThreadPoolExecutor(14)
    pending = {
        key: [(launch, pool.submit(warm, launch)) for plan in parts.values() for launch in plan.values()]
        for key, parts in plans.items()
    }
    sums: dict[str, list[float]] = {}
    times: list[dict[str, Any]] = []
    winners: list[str] = []
    for case, part in work:
        if time.monotonic() - begun > options.seconds:
            print(f"{case} {part}: no time left", flush=True)
            continue
        failed = {id(launch): why for launch, future in pending[case, part] if (why := future.result())}
        shape = Shape(case, options.rounds)
        separate = shape.library_forward() if part == "forward" else shape.library_gradients()
        library = sample({name: replay for name, run in separate.items() if (replay := captured(run))}, options.rounds)
        fused = {kernel: measure(shape, kernel, plan, failed) for kernel, plan in plans[case, part].items()}
        p = case.product
        operations = 2.0 * p.rows * p.inner * p.outer
        if part == "forward":
            guess = predicted(least_bytes(case, "multiply"), operations, bandwidth)
            choices = fused["multiply"]
        else:
            guess = sum(
                predicted(least_bytes(case, kernel), operations, bandwidth)
                for kernel in ("data_gradient", "weight_gradient")
            )
            data, weight, choices = fused["data_gradient"], fused["weight_gradient"], dict[str, float]()
            if data and weight:
                best = min(data, key=lambda name: data[name]), min(weight, key=lambda name: weight[name])
                choices[f"data {best[0]} {data[best[0]]:.4f} weight {best[1]} {weight[best[1]]:.4f}"] = (
                    data[best[0]] + weight[best[1]]
                )
        old, new = report(case, part, library, choices, guess)
        for kernel, values in fused.items():
            print(f"      {kernel}: " + "  ".join(f"{name} {value:.4f}" for name, value in values.items()), flush=True)
        total = sums.setdefault(f"{part} {case.kind}", [0.0, 0.0])
        total[0] += old
        total[1] += new
        winners.extend(rows_of_plan(case, part, min(library.values()), choices))
        measured = {"library": library, "fused": fused, "predicted": guess}
        times.append({"case": str(case), "part": part, **measured})
        del shape
        torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps(times, indent=1))
    print("winners, as compare/kernels/plans.py takes them:", *winners, sep="\n")
    for name, (old, new) in sums.items():
        print(f"sum over the network, {name}: separate {old:.3f} ms, fused where it wins {new:.3f} ms")
    gain = sum(old - new for old, new in sums.values())
    print(f"gain {gain:.3f} ms, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
