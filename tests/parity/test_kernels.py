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
from compare.kernels.launches import Blocks, Launch, Product
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

    rows, inner, outer = product.rows, product.inner, product.outer
    shapes = {
        "x": (rows, inner),
        "weight": (outer, inner),
        "skip": (rows, inner),
        "source": (rows, inner),
        "gradient": (rows, outer),
        "y": (rows, outer),
    }
    vectors = dict.fromkeys(("bias", "center"), (inner,)) | {"factors": (5, outer), "shift": (outer,)}
    values = {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}
    values |= {name: normal(*shape) for name, shape in vectors.items()}
    return values | {"scale": normal(inner).abs() + 0.5}


def activated(values: Values, *, apply: bool) -> torch.Tensor:
    x = values["x"]
    return torch.relu(x.float() * values["scale"] + values["bias"]).to(x.dtype) if apply else x


def gradient_of_y(values: Values) -> torch.Tensor:
    g, y, factors = values["gradient"].float(), values["y"].float(), values["factors"]
    masked = torch.where(y * factors[3] + factors[4] > 0, g, 0)
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
    x = activated(values, apply=apply)
    counts = torch.tensor(launches.rows_of_walkers(launch), dtype=torch.float64)[:, None]
    mean = (counts * made["means"]).sum(0) / product.rows
    variance = (made["squares"] + counts * (made["means"] - mean) ** 2).sum(0) / product.rows
    stored = made["y"].double()
    errors = error(made["y"], x.double() @ values["weight"].double().T), error(mean, stored.mean(0))
    return max(*errors, error(variance, stored.var(0, unbiased=False)))


def gradient(dtype: torch.dtype, kernel: str, product: Product = PRODUCT, *, kernels: Any = None) -> float:
    """Return the largest error of one of the gradients' kernels."""
    values = draw(product, dtype)
    x, weight = values["x"], values["weight"]
    if kernel == "weight_gradient":
        launch = launches.weight_gradient(product, BLOCKS, processors=8)
        names = "gradient", "y", "factors", "x"
    else:
        launch = launches.data_gradient(product, BLOCKS, processors=8, weight_strides=(1, product.inner))
        names = "gradient", "y", "factors", "weight", "x", "center", "skip", "source"
    made = interpreted.run(launch, [values[name] for name in names], kernels)
    d = gradient_of_y(values).double()
    if "parts" in made:
        return error(made["parts"].sum(0), x.double().T @ d)
    v = torch.where(x > 0, d @ weight.double() + values["skip"].double(), 0)
    stored = made["result"].double()
    products = stored * (values["source"].double() - values["center"])
    errors = error(made["result"], v), error(made["sums"].sum(0), stored.sum(0))
    return max(*errors, error(made["products"].sum(0), products.sum(0)))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("blocks", [BLOCKS, Blocks(32, 64, 32, 1, 2), Blocks(32, 16, 16, 2, 3, 2)])
def test_a_product_and_its_moments(blocks: Blocks, apply: bool, dtype: torch.dtype) -> None:
    assert multiply(dtype, blocks=blocks, apply=apply) < TOLERANCE[dtype]


def test_a_product_in_several_steps() -> None:
    assert multiply(torch.float32, Product(96, 48, 32)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("kernel", ["data_gradient", "weight_gradient"])
def test_gradients(kernel: str) -> None:
    assert gradient(torch.float32, kernel) < TOLERANCE[torch.float32]
    assert gradient(torch.float16, kernel) < 4 * TOLERANCE[torch.float16]


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
        "mask=(rows < ROWS)[:, None] & (columns < WIDTH)[None, :], other=0.0)",
        "mask=(rows < ROWS)[:, None] & (columns < WIDTH)[None, :], other=1.0)",
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
        found = gradient(torch.float32, kernel, kernels=kernels)
    assert not found < TOLERANCE[torch.float32]


def test_block_sizes_never_leave_a_program_without_rows() -> None:
    for rows in (1, 31, 33, 100, 6400):
        launch: Launch = launches.multiply(
            Product(rows, 16, 32), BLOCKS, processors=132, apply=False, weight_strides=(1, 16)
        )
        counts = launches.rows_of_walkers(launch)
        assert sum(counts) == rows
        assert min(counts) > 0
