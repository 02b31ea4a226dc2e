"""The Triton kernels compute what their documentation says, and planted faults show."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from compare.kernels import launches
from compare.kernels.launches import Blocks, Launch, Mask, Product
from tests.parity import interpreted

SOURCE = Path(launches.__file__).with_name("products.py")
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2e-3}
PRODUCT = Product(100, 16, 32)  # the last block of 32 rows is partial
BLOCKS = Blocks(32, 16, 16, 1, 2)

Values = dict[str, torch.Tensor]


def draw(product: Product, dtype: torch.dtype) -> Values:
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=made).to(dtype)

    rows = product.rows if product.stride == 1 else product.rows // _lines(product) ** 2 * product.side**2
    inner, outer = product.inner, product.outer
    shapes = {
        "x": (rows, inner),
        "weight": (outer, inner),
        "skip": (rows, inner),
        "source": (rows, inner),
        "gradient": (product.rows, outer),
        "y": (product.rows, outer),
    }
    vectors = dict.fromkeys(("bias", "center"), (inner,)) | {"factors": (5, outer), "shift": (outer,)}
    values = {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}
    values |= {name: normal(*shape) for name, shape in vectors.items()}
    return values | {"scale": normal(inner).abs() + 0.5}


def _lines(product: Product) -> int:
    return -(-product.side // product.stride)


def chosen_pixels(x: torch.Tensor, product: Product) -> torch.Tensor:
    if product.stride == 1:
        return x
    images = x.view(-1, product.side, product.side, product.inner)
    return images[:, :: product.stride, :: product.stride].reshape(-1, product.inner)


def activated(values: Values, *, apply: bool) -> torch.Tensor:
    x = values["x"]
    return torch.relu(x.float() * values["scale"] + values["bias"]).to(x.dtype) if apply else x


def gradient_of_y(values: Values, *, normalised: bool = True, gated: bool = False) -> torch.Tensor:
    g, y, factors = values["gradient"].float(), values["y"].float(), values["factors"]
    if not normalised:
        return values["gradient"]
    masked = torch.where(y * factors[3] + factors[4] > 0, g, 0) if gated else g
    return (masked * factors[0] + y * factors[1] + factors[2]).to(values["y"].dtype)


def error(value: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest error as a share of the largest value. NaN is the worst."""
    worst = (value.double() - wanted.double()).abs().max() / wanted.double().abs().max()
    return float("inf") if worst.isnan() else float(worst)


def multiply(
    dtype: torch.dtype, product: Product = PRODUCT, blocks: Blocks = BLOCKS, *, apply: bool = True, kernels: Any = None
) -> float:
    """Return the largest error of `multiply`."""
    values = draw(product, dtype)
    launch = launches.multiply(product, blocks, processors=8, apply=apply, weight_strides=(1, product.inner))
    inputs = [values[name] for name in ("x", "weight", "scale", "bias", "shift")]
    made = interpreted.run(launch, inputs, kernels)
    x = chosen_pixels(activated(values, apply=apply), product)
    counts = torch.tensor(launches.rows_of_walkers(launch), dtype=torch.float64)[:, None]
    mean = (counts * made["means"]).sum(0) / product.rows
    variance = (made["squares"] + counts * (made["means"] - mean) ** 2).sum(0) / product.rows
    stored = made["y"].double()
    errors = error(made["y"], x.double() @ values["weight"].double().T), error(mean, stored.mean(0))
    return max(*errors, error(variance, stored.var(0, unbiased=False)))


def gradients(
    dtype: torch.dtype,
    kernel: str,
    mask: Mask = "affine",
    product: Product = PRODUCT,
    *,
    normalised: bool = True,
    gated: bool = False,
    kernels: Any = None,
) -> float:
    """Return the largest error of one of the gradients' kernels."""
    values = draw(product, dtype)
    first = values["gradient"], values["y"], values["factors"]
    activation = values["x"], values["scale"], values["bias"]
    options: dict[str, Any] = {"processors": 8, "normalised": normalised, "gated": gated}
    if kernel == "weight_gradient":
        launch = launches.weight_gradient(product, BLOCKS, apply=mask == "affine", **options)
        inputs: tuple[torch.Tensor, ...] = (*first, *activation)
    else:
        options |= {"weight_strides": (1, product.inner), "mask": mask, "add": mask == "plain"}
        launch = getattr(launches, kernel)(product, BLOCKS, **options)
        inputs = (*first, values["weight"], *activation, *(values[name] for name in ("center", "skip", "source")))
    made = interpreted.run(launch, inputs, kernels)
    d, errors = gradient_of_y(values, normalised=normalised, gated=gated).double(), list[float]()
    if "parts" in made:
        x = chosen_pixels(activated(values, apply=mask == "affine"), product)
        errors.append(error(made["parts"].sum(0), x.double().T @ d))
    if "result" in made:
        x, v = values["x"].float(), d @ values["weight"].double()
        switch = {"affine": x * values["scale"] + values["bias"], "plain": x, "none": torch.ones_like(x)}[mask]
        v = torch.where(switch > 0, v + values["skip"].double() if mask == "plain" else v, 0)
        source = (x if mask == "affine" else values["source"]).double()
        stored = made["result"].double()
        errors += [error(made["result"], v), error(made["sums"].sum(0), stored.sum(0))]
        errors.append(error(made["products"].sum(0), (stored * (source - values["center"])).sum(0)))
    return max(errors)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("blocks", [BLOCKS, Blocks(32, 64, 32, 1, 2, in_threads=False), Blocks(32, 16, 16, 2, 3, 2)])
def test_a_product_and_its_moments(blocks: Blocks, apply: bool, dtype: torch.dtype) -> None:
    assert multiply(dtype, blocks=blocks, apply=apply) < TOLERANCE[dtype]


def test_a_product_in_several_steps_and_one_of_every_second_pixel() -> None:
    assert multiply(torch.float32, Product(96, 48, 32)) < TOLERANCE[torch.float32]
    assert multiply(torch.float32, Product(32, 16, 48, side=7, stride=2)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("mask", ["none", "plain", "affine"])
@pytest.mark.parametrize("kernel", ["data_gradient", "weight_gradient", "both_gradients"])
def test_gradients(kernel: str, mask: Mask) -> None:
    assert gradients(torch.float32, kernel, mask) < TOLERANCE[torch.float32]
    assert gradients(torch.float16, kernel, mask, gated=True) < 4 * TOLERANCE[torch.float16]


def test_a_data_gradient_of_a_stored_gradient() -> None:
    assert gradients(torch.float32, "data_gradient", "plain", normalised=False) < TOLERANCE[torch.float32]


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Callable[[str, str], ModuleType]]:
    """Return a function that imports the kernels with one fault: a piece of text in place of another."""
    names = list[str]()

    def plant(right: str, wrong: str) -> ModuleType:
        text = SOURCE.read_text(encoding="utf-8")
        assert right in text
        path = tmp_path / f"planted_products_{len(names)}.py"
        path.write_text(text.replace(right, wrong), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        names.append(path.stem)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module

    yield plant
    for name in names:
        del sys.modules[name]


FAULTS = {
    "a mask that leaves out the last block's rows": (
        "mask=(rows < ROWS)[:, None] & (columns < OUTER)[None, :])",
        "mask=(rows < ROWS - BLOCK_ROWS)[:, None] & (columns < OUTER)[None, :])",
        "multiply",
    ),
    "moments that count rows beyond the last": (
        "shifted = tl.where((rows < ROWS)[:, None], shifted, 0.0)",
        "shifted = shifted + 0.0",
        "multiply",
    ),
    "moments of a tile that count twice": (
        "return total + _add_rows(shifted, GROUP), total_squares",
        "return total + 2 * _add_rows(shifted, GROUP), total_squares",
        "multiply",
    ),
    "a product that is added up in half precision": (
        "product = tl.dot(a, w, product, input_precision=PRECISION)",
        "product = tl.dot(a, w, product, input_precision=PRECISION).to(tl.float16).to(tl.float32)",
        "multiply in steps",
    ),
    "a race: programs write their moments to one place": (
        "places = walker * OUTER + columns",
        "places = columns",
        "multiply",
    ),
    "a race: programs write their sums to one place": (
        "places = walker * INNER + columns",
        "places = columns",
        "data_gradient",
    ),
    "a race: splits write to one place": (
        "places = split * INNER * OUTER +",
        "places = 0 * split +",
        "weight_gradient",
    ),
    "a gradient that counts rows beyond the last": (
        "d = tl.where((rows < ROWS)[:, None], d, 0.0)",
        "d = d + 0.0",
        "weight_gradient",
    ),
    "a mask by the wrong sign": (
        "value = tl.where(switch > 0, value, 0.0)",
        "value = tl.where(switch < 0, value, 0.0)",
        "data_gradient",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(planted: Callable[[str, str], ModuleType], fault: str) -> None:
    right, wrong, kernel = FAULTS[fault]
    kernels = planted(right, wrong)
    if kernel == "multiply":
        found = multiply(torch.float32, kernels=kernels)
    elif kernel == "multiply in steps":
        found = multiply(torch.float32, Product(96, 48, 32), kernels=kernels)
    else:
        found = gradients(torch.float32, kernel, kernels=kernels)
    assert not found < TOLERANCE[torch.float32]


def test_block_sizes_never_leave_a_program_without_rows() -> None:
    for rows in (1, 31, 33, 100, 6400):
        launch: Launch = launches.multiply(
            Product(rows, 16, 32), BLOCKS, processors=132, apply=False, weight_strides=(1, 16)
        )
        counts = launches.rows_of_walkers(launch)
        assert sum(counts) == rows
        assert min(counts) > 0
