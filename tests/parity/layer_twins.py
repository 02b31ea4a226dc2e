"""One layer in both backends with the same values, for tests of layers against NumPy in float64.

JAX computes it in one program. To compile a program for each of its operations takes twice as long.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import jaxbackend.layers
import jaxbackend.layout
import jaxbackend.precision
import torchbackend.layers
import torchbackend.layout
import torchbackend.precision
from compare.base.interface import Array, Arrays
from torchbackend.only.memory_order import to_channels_last


class Twin:
    """One layer in both backends, with the same values."""

    def __init__(self, name: str, *sizes: int, arrays: Arrays | None = None, **options: Any) -> None:
        self.policy = jaxbackend.precision.policy("float64", "cpu")
        has_values = arrays is not None
        torch_policy = torchbackend.precision.policy("float64", "cpu")
        with self.policy.scope():
            self.jax = getattr(jaxbackend.layers, name)(
                *sizes, **options, **({"policy": self.policy} if has_values else {})
            )
            for attribute, array in (arrays or {}).items():
                getattr(self.jax, attribute).set_value(jnp.asarray(array))
        self.torch = getattr(torchbackend.layers, name)(
            *sizes, **options, **({"policy": torch_policy} if has_values else {})
        )
        model = torch.nn.Sequential(self.torch)
        self.leaves = torchbackend.layout.leaves(model, torchbackend.layout.names(model))
        torchbackend.layout.assign(
            self.leaves, {f"0.{attribute}": array for attribute, array in (arrays or {}).items()}
        )

    def __call__(self, *images: Array) -> Array:
        """Return the output for one or more images [N, H, W, C], the same from both."""
        with self.policy.scope():
            compute = nnx.jit(lambda layer, *x: layer(*x))
            ours = np.asarray(compute(self.jax, *map(jnp.asarray, images)))
        inputs = [torch.from_numpy(each) for each in images]
        theirs = self.torch(*(x.permute(0, 3, 1, 2) if x.ndim == 4 else x for x in inputs)).detach()
        same(ours, to_channels_last(theirs).numpy())
        return ours

    def buffers(self) -> Arrays:
        """Return the running statistics, the same from both."""
        theirs = {leaf.name: leaf.tensor.numpy() for leaf in self.leaves if not leaf.is_parameter}
        for name, array in theirs.items():
            same(np.asarray(getattr(self.jax, name.removeprefix("0."))[...]), array)
        return {name.removeprefix("0."): array for name, array in theirs.items()}

    def gradients(self, images: Array, weight: Array) -> Arrays:
        """Return the gradients of the weighted sum of the outputs, of `input` and of parameters, the same from both."""
        with self.policy.scope():
            graph, values = nnx.split(self.jax)

            def objective(values: Any, x: jax.Array) -> jax.Array:
                return (nnx.merge(graph, values)(x) * weight).sum()

            gradients = jax.jit(jax.grad(objective, argnums=(0, 1)))
            of_values, of_input = gradients(nnx.to_pure_dict(values), jnp.asarray(images))
            found = jaxbackend.layout.fetch({"input": of_input} | jaxbackend.layout.export(of_values, None))
        x = torch.from_numpy(images).requires_grad_()
        channels_first = (0, 3, 1, 2) if x.ndim == 4 else (0, 1)
        outputs = self.torch(x.permute(channels_first))
        outputs.backward(torch.from_numpy(weight).permute(channels_first))
        assert x.grad is not None
        same(found["input"], x.grad.numpy())
        theirs = {leaf.name: leaf.tensor.grad for leaf in self.leaves if leaf.tensor.grad is not None}
        for name, array in torchbackend.layout.fetch(torchbackend.layout.export(theirs, self.leaves)).items():
            same(found[name.removeprefix("0.")], array)
        return found

    def eval(self) -> None:
        self.jax.eval()
        self.torch.eval()


def same(value: Array, reference: Array) -> None:
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, reference, rtol=1e-12, atol=1e-13)
