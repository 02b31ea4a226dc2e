"""Changes that samestep does not make (yet), for `benchmarks.step_time --lever`, `benchmarks.xla_program` and
`benchmarks.inductor_program` to try.

Environment variables are levers too: XLA_FLAGS=--xla_gpu_autotune_level=5 python -m benchmarks.step_time ...
"""

from collections.abc import Callable, Mapping
from typing import Any

LEVER_VARIABLE = "SAMESTEP_BENCHMARKS_LEVER"
"""Names the levers to a contender's further processes (benchmarks/levered_rank.py)."""


def pointwise_as_matmul_jax() -> None:
    """Have XLA see a 1x1 convolution as a matrix product, which its Triton emitter can fuse with its neighbours."""
    import jax
    import jax.numpy as jnp

    from jaxbackend import layers

    plain = layers.Conv.__call__

    def call(self: Any, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        if kernel.shape[:2] != (1, 1) or self.bias is not None:
            return plain(self, x)
        stride = self.strides if isinstance(self.strides, int) else self.strides[0]
        dtype = self.dtype
        return jnp.einsum("nhwc,cd->nhwd", x[:, ::stride, ::stride].astype(dtype), kernel[0, 0].astype(dtype))

    setattr(layers.Conv, "__call__", call)  # noqa: B010 -- pyright wants the same argument names


def padded_stem_jax(channels: int) -> None:
    """Give images of three channels more, all zeros, for convolutions whose kernels want a multiple of so many."""
    import jax
    import jax.numpy as jnp

    from jaxbackend import layers

    plain = layers.Conv.__call__

    def call(self: Any, inputs: jax.Array) -> jax.Array:
        if inputs.shape[-1] != 3:
            return plain(self, inputs)
        more = (0, channels - 3)
        x = jnp.pad(inputs.astype(self.dtype), ((0, 0), (0, 0), (0, 0), more))
        kernel = jnp.pad(self.kernel[...].astype(self.dtype), ((0, 0), (0, 0), more, (0, 0)))
        strides = self.strides if isinstance(self.strides, tuple) else (self.strides,) * 2
        y = jax.lax.conv_general_dilated(x, kernel, strides, self.padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y if self.bias is None else (y + self.bias[...]).astype(self.dtype)

    setattr(layers.Conv, "__call__", call)  # noqa: B010 -- pyright wants the same argument names


def padded_stem_torch(channels: int) -> None:
    """The same."""
    import torch
    from torch.nn import functional

    from torchbackend import layers

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        x, weight = input, self.weight
        if x.shape[1] == 3:
            x, weight = (functional.pad(each, (0, 0, 0, 0, 0, channels - 3)) for each in (x, weight))
        return self._conv_forward(x, weight, self.bias)

    layers.Conv.forward = forward


def transposed_as_matmul_jax() -> None:
    """Have XLA see a transposed convolution without overlaps as a product, each pixel of which becomes a tile."""
    import jax
    import jax.numpy as jnp

    from jaxbackend import layers

    def call(self: Any, inputs: jax.Array) -> jax.Array:
        kernel = self.kernel[...].astype(self.dtype)  # [height, width, outputs, inputs]
        assert kernel.shape[:2] == (self.strides, self.strides)
        n, h, w, _ = inputs.shape
        tiles = jnp.einsum("nhwi,yxoi->nhywxo", inputs.astype(self.dtype), kernel)
        joined = tiles.reshape(n, h * kernel.shape[0], w * kernel.shape[1], kernel.shape[2])
        return joined + self.bias[...].astype(self.dtype)

    setattr(layers.ConvTranspose, "__call__", call)  # noqa: B010 -- pyright wants the same argument names


def coordinate_descent() -> None:
    from torch._inductor import config

    config.coordinate_descent_tuning = True


def torch_library_batch_norm() -> None:
    """TorchInductor's own batch norm, whose statistics are Welford's."""
    from torchbackend import layers

    del layers.BatchNorm.forward


def torch_library_max_pool() -> None:
    """TorchInductor's own max-pool."""
    from torchbackend import layers

    del layers.MaxPool.forward


def torch_library_layers() -> None:
    torch_library_batch_norm()
    torch_library_max_pool()


def torch_library_gradients() -> None:
    """PyTorch's own gradients of ReLUs, and no say in what TorchInductor stores."""
    from torch.nn import functional

    from torchbackend import gradients

    gradients.relu = gradients.relu_normalised = functional.relu
    gradients.stored = lambda x: x


def torch_small_combos() -> None:
    """With concurrent-kernels, one kernel of small ones alone: TorchInductor's own limit is 51 million results."""
    from math import prod

    from torch._inductor.codegen import triton_combo_kernel as combos

    plain = combos._default_custom_combo_kernel_horizontal_partition

    def parts(nodes: list[Any], *more: Any) -> list[list[Any]]:
        small = [node for node in nodes if prod(int(each) for each in node.group[1]) <= 2**22]
        return [*(plain(small, *more) if small else []), *([node] for node in nodes if node not in small)]

    combos.set_custom_combo_kernel_horizontal_partition(parts)


def torch_small_fusions() -> None:
    """Fuse what reads small arrays alone, though neither is then free for the other's results.

    TorchInductor takes that for more memory at the peak: it holds the last passes of batch norm's two sums apart.
    """
    from torch._inductor.scheduler import Scheduler

    plain = Scheduler.can_fusion_increase_peak_memory

    def grows(self: Any, node1: Any, node2: Any) -> bool:
        read = [self.name_to_buf.get(each.name) for node in (node1, node2) for each in node.read_writes.reads]
        arrays = [each.node for each in read if each and len(each.users) == 1 and each.node.has_tensor_output()]
        return any(each.get_numel() > 2**21 for each in arrays) and plain(self, node1, node2)

    Scheduler.can_fusion_increase_peak_memory = grows


def torch_sums_by_image() -> None:
    """Batch norm's gradient as sums over each image, then over images.

    TorchInductor splits no sum with so many results, and makes one kernel of it and of the stored gradient it reads.
    """
    import torch

    from torchbackend import layers

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        wide = input.to(self.weight.dtype)
        mean, var = self._batch_statistics(wide)
        factor = self.weight * torch.rsqrt(var + self.eps)
        factor, shift = (
            layers._stored(each).expand(len(wide), -1)[:, :, None, None] for each in (factor, self.bias - mean * factor)
        )
        return (wide * factor + shift).to(input.dtype)

    layers.BatchNorm.forward = forward


def max_autotune_pointwise() -> None:
    from torch._inductor import config

    config.max_autotune_pointwise = True


def cooperative_reductions() -> None:
    """One kernel for a reduction whose parts are summed by another."""
    from torch._inductor import config

    config.triton.cooperative_reductions = True


def library_max_pool() -> None:
    """XLA's own max-pool, whose gradient scatters."""
    from flax import nnx

    from jaxbackend import gradients

    def pool(x: Any, size: int, stride: int, padding: int) -> Any:
        sides: Any = [(padding, padding)] * 2
        return nnx.max_pool(x, (size, size), (stride, stride), sides)

    gradients.max_pool = pool


def pool_by_place() -> None:
    """A max-pool's gradient as a sum over the places of a window, each enlarged by zeros to the size of the input."""
    import jax
    import jax.numpy as jnp

    from jaxbackend import gradients

    def backward(size: int, stride: int, padding: int, kept: Any, gradient: jax.Array) -> tuple[jax.Array]:
        winner, (_, height, width) = kept[0], kept[1].shape
        wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32))
        total = jnp.zeros((), wide.dtype)
        for i, j in (divmod(each, size) for each in range(size * size)):
            sides = [(0, 0, 0)]
            for offset, side, count in zip((i, j), (height, width), gradient.shape[1:3], strict=True):
                before = offset - padding
                sides.append((before, side - before - (count - 1) * stride - 1, stride - 1))
            place = i * (size + stride) + j
            total += jax.lax.pad(jnp.where(winner == place, wide, 0), jnp.zeros((), wide.dtype), [*sides, (0, 0, 0)])
        return (total.astype(gradient.dtype),)

    gradients._pooled.defvjp(gradients._max_pool_forward, backward)


def unstored_pool() -> None:
    """A max-pool whose windows' places are not stored, and its gradient with no stored border."""
    import jax

    jax.lax.optimization_barrier = lambda x: x


def stem_of_patches_jax() -> None:
    """Small images convolved as products of their windows, too."""
    from jaxbackend import stems

    stems.LARGE = 0


def stem_of_added_patches_jax() -> None:
    """The same, windows written as sums of parts filled up with zeros: XLA writes parts put together one by one."""
    import jax
    import jax.numpy as jnp

    from jaxbackend import stems

    def patches(x: jax.Array, kernel: jax.Array, padding: int) -> tuple[jax.Array, jax.Array]:
        size, _, channels, outputs = kernel.shape
        x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        height, width = (side - size + 1 for side in x.shape[1:3])
        zero, parts = jnp.zeros((), x.dtype), list[jax.Array]()
        for place in range(size * size):
            i, j = divmod(place, size)
            before = place * channels
            sides = [(0, 0, 0)] * 3 + [(before, stems.WINDOW - before - channels, 0)]
            parts.append(jax.lax.pad(x[:, i : i + height, j : j + width], zero, sides))
        full = stems.WINDOW - size * size * channels
        return sum(parts[1:], parts[0]), jnp.pad(kernel.reshape(-1, outputs), ((0, full), (0, 0)))[None, None]

    stems.LARGE, stems.patches = 0, patches


def stem_without_patches_jax() -> None:
    """No images convolved as products of their windows."""
    from jaxbackend import stems

    stems.WINDOW = 0


def stem_without_patches_torch() -> None:
    """The same."""
    from torchbackend import stems

    stems.WINDOW = 0


def plain_stem_jax() -> None:
    """Images of few channels convolved as they are."""
    from jaxbackend import stems

    stems.AT_ONCE = 0


def plain_stem_torch() -> None:
    """The same."""
    from torchbackend import stems

    stems.AT_ONCE = 0


def torch_algorithms(count: int) -> None:
    """cuDNN's search among the first `count` algorithms that work of those that its heuristics name (0: all of them).

    torch's own is among the first ten.
    """
    from torch.backends import cudnn

    cudnn.benchmark_limit = count


def torch_unstored_relu() -> None:
    """ReLUs after batch norm that leave it to TorchInductor how it stores the gradient that they are given."""
    from torchbackend import gradients

    gradients.relu_normalised = gradients._ReluNormalised.apply


def stored_pooled() -> None:
    """The images that a max-pool with padding reads, stored with their border before."""
    import jax
    import jax.numpy as jnp

    from jaxbackend import gradients

    plain = gradients._max_and_winner

    def stored(x: jax.Array, size: int, stride: int, padding: int) -> tuple[jax.Array, jax.Array]:
        if not padding:
            return plain(x, size, stride, padding)
        sides = [(0, 0, 0), (padding, padding, 0), (padding, padding, 0), (0, 0, 0)]
        return plain(jax.lax.optimization_barrier(jax.lax.pad(x, jnp.array(-jnp.inf, x.dtype), sides)), size, stride, 0)

    gradients._max_and_winner = stored


def library_gradients() -> None:
    """JAX's own gradients of ReLUs after sums and of transposed convolutions."""
    from flax import nnx

    from jaxbackend import gradients, layers

    gradients.relu = nnx.relu
    del layers.ConvTranspose.__call__


def recomputed_gelu() -> None:
    """A gradient of GELU that computes its distribution function again, for XLA keeps a part of it in memory."""
    from functools import partial

    import jax
    from flax import nnx

    from jaxbackend.models import convnext

    plain = partial(nnx.gelu, approximate=False)

    def pulled(x: Any, gradient: Any) -> tuple[Any]:
        return jax.vjp(plain, jax.lax.optimization_barrier(x))[1](gradient)  # or XLA merges both computations

    recomputed = jax.custom_vjp(plain)
    recomputed.defvjp(lambda x: (plain(x), x), pulled)
    convnext.gelu = recomputed


def two_pass_variance() -> None:
    """Variance as the mean square distance from the mean, which needs the mean first."""
    import jax.numpy as jnp

    from jaxbackend import layers

    def moments(wide: Any, **_: Any) -> Any:  # one device's and several's alike
        axes = tuple(range(wide.ndim - 1))
        mean = wide.mean(axes)
        return mean, jnp.square(wide - mean).mean(axes)

    layers._moments = moments


LEVERS: Mapping[str, Callable[[], None]] = {
    "none": lambda: None,
    "jax-pointwise-as-matmul": pointwise_as_matmul_jax,
    "jax-transposed-as-matmul": transposed_as_matmul_jax,
    "jax-stem-of-4": lambda: padded_stem_jax(4),
    "jax-stem-of-8": lambda: padded_stem_jax(8),
    "torch-stem-of-4": lambda: padded_stem_torch(4),
    "torch-stem-of-8": lambda: padded_stem_torch(8),
    "jax-library-max-pool": library_max_pool,
    "jax-pool-by-place": pool_by_place,
    "jax-plain-stem": plain_stem_jax,
    "jax-stem-of-patches": stem_of_patches_jax,
    "jax-stem-of-added-patches": stem_of_added_patches_jax,
    "jax-stem-without-patches": stem_without_patches_jax,
    "jax-unstored-pool": unstored_pool,
    "jax-stored-pooled": stored_pooled,
    "jax-library-gradients": library_gradients,
    "jax-two-pass-variance": two_pass_variance,
    "jax-recomputed-gelu": recomputed_gelu,
    "torch-library-batch-norm": torch_library_batch_norm,
    "torch-library-max-pool": torch_library_max_pool,
    "torch-library-layers": torch_library_layers,
    "torch-library-gradients": torch_library_gradients,
    "torch-small-combos": torch_small_combos,
    "torch-small-fusions": torch_small_fusions,
    "torch-sums-by-image": torch_sums_by_image,
    "torch-plain-stem": plain_stem_torch,
    "torch-stem-without-patches": stem_without_patches_torch,
    "torch-every-algorithm": lambda: torch_algorithms(0),
    "torch-four-algorithms": lambda: torch_algorithms(4),
    "torch-two-algorithms": lambda: torch_algorithms(2),
    "torch-unstored-relu": torch_unstored_relu,
    "torch-coordinate-descent": coordinate_descent,
    "torch-max-autotune-pointwise": max_autotune_pointwise,
    "torch-cooperative-reductions": cooperative_reductions,
}
