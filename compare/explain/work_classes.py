"""The classes of work in a training step, and the rules that put a kernel into one of them."""

import re
from collections.abc import Collection, Mapping, Sequence

from compare.base.operation_counts import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT
from compare.base.profiles import POOLING

CONVOLUTIONS: Mapping[str, str] = {
    FORWARD: "convolution-forward",
    DATA_GRADIENT: "convolution-data-gradient",
    WEIGHT_GRADIENT: "convolution-weight-gradient",
}
PRODUCT, NORMALISATION, POOL, POINTWISE, REDUCTION = (
    "matrix-product",
    "normalisation",
    "pooling",
    "pointwise",
    "reduction",
)
OPTIMIZER, LAYOUT, HOST_TO_DEVICE, COMMUNICATION = "optimizer", "layout-and-copy", "host-to-device", "communication"
IDLE, UNATTRIBUTED = "idle", "unattributed"

MEANINGS: Mapping[str, str] = {
    CONVOLUTIONS[FORWARD]: "convolutions of the forward pass",
    CONVOLUTIONS[DATA_GRADIENT]: "gradients of convolutions' inputs",
    CONVOLUTIONS[WEIGHT_GRADIENT]: "gradients of convolutions' kernels",
    PRODUCT: "matrix products, as in dense layers, with their gradients",
    NORMALISATION: "batch and layer norm, with all that is fused into them",
    POOL: "pooling layers, with all that is fused into them, such as a ReLU",
    POINTWISE: "work on each value by itself, such as ReLU and additions",
    REDUCTION: "sums and means, such as the loss",
    OPTIMIZER: "the update of the parameters",
    LAYOUT: "copies, changes of memory order or of dtype",
    HOST_TO_DEVICE: "copies from the host to the device",
    COMMUNICATION: "exchanges between devices",
    IDLE: "no kernel runs: the device waits for Python, or for the next launch",
    UNATTRIBUTED: "kernels that no rule knows",
}
"""What each class holds, in the order of tables."""

CLASSES = tuple(MEANINGS)

_NORMS = ("batch-norm", "layer-norm", "group-norm")

# Names of kernels that say what they do, whatever launched them.
_KERNEL_NAMES: Sequence[tuple[str, str]] = (
    (HOST_TO_DEVICE, r"memcpy ?h(to|2)d|htod"),
    (COMMUNICATION, r"nccl|all_?reduce|all_?gather|reduce_?scatter"),
    (LAYOUT, r"memcpy|memset|nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw|tensortransform|convert_?tensor|transpose"),
    (CONVOLUTIONS[WEIGHT_GRADIENT], r"wgrad|backwardfilter|backward_filter|bwd_?filter|bw-filter|bw_filter"),
    (CONVOLUTIONS[DATA_GRADIENT], r"dgrad|backwarddata|backward_data|bwd_?data|bw-input|bw_input|backwardinput"),
    (CONVOLUTIONS[FORWARD], r"fprop|convolve|winograd|implicit_convolve|conv2d_|convforward|cudnn.?conv"),
    (OPTIMIZER, r"multi_tensor_apply|multitensor|adam|sgd"),
    (NORMALISATION, r"batch_?norm|bn_(fw|bw)|layer_?norm|group_?norm"),
    (POOL, r"max_?pool|avg_?pool|pooling"),
    (PRODUCT, r"gemm|nvjet|cutlass|matmul|triton_mm|_dot_|cublas|splitk"),
    (REDUCTION, r"softmax|nll_loss|reduce_kernel|reduction"),
)

# torch's operations, and the words of the names that TorchInductor makes of them.
_TORCH_NAMES: Sequence[tuple[str, str]] = (
    (NORMALISATION, r"batch_norm|layer_norm|group_norm|instance_norm"),
    (POOL, r"pool"),
    (REDUCTION, r"softmax|nll_loss|cross_entropy|\bsum\b|\bmean\b|var_mean|amax|argmax|\bnorm\b"),
    (
        LAYOUT,
        r"^(copy_?|clone|contiguous|to|_to_copy|transpose|permute|t|view|reshape|_unsafe_view|flatten|expand|"
        r"as_strided|detach|cat|pad|constant_pad_nd|zeros|zeros_like|zero_|fill_|empty|empty_like|ones_like|"
        r"ones|full|full_like|select|slice|unbind|squeeze|unsqueeze|movedim|index|resize_|slice_backward|stack|"
        r"empty_strided|lift_fresh|alias|narrow|chunk|split|item|_local_scalar_dense|set_|random_|unfold)$",
    ),
)

_CASTS = frozenset({"to", "_to_copy", "convert", "convert_element_type"})

_XLA_LAYOUT = frozenset(
    (
        *("transpose", "copy", "bitcast", "reshape", "slice", "concatenate", "pad", "broadcast", "convert", "constant"),
        *("parameter", "tuple", "get-tuple-element", "dynamic-slice", "dynamic-update-slice", "iota", "reverse"),
        *("bitcast-convert", "copy-start", "copy-done", "fusion"),
    )
)
_XLA_NOTHING = frozenset(("constant", "parameter", "tuple", "get-tuple-element", "bitcast", "fusion", "broadcast"))


def classify_name(kernel: str) -> str | None:
    """Return the class that a kernel's own name shows, or None."""
    low = kernel.lower()
    return next((name for name, pattern in _KERNEL_NAMES if re.search(pattern, low)), None)


def moves_data(kernel: str) -> bool:
    """Tell whether a kernel's own name says that it only moves data or waits for it."""
    return classify_name(kernel) in (HOST_TO_DEVICE, COMMUNICATION, LAYOUT)


def classify_torch(operations: Collection[str], kinds: Collection[str]) -> str:
    """Return the class of a kernel that computes these operations of torch, such as `relu` or `convolution`.

    `kinds` are the kinds of the layers that they belong to. A kernel of several classes has the one that costs most.
    """
    names = [operation.removeprefix("aten::") for operation in operations]
    if any(re.search(r"convolution|conv_transpose|conv2d|slow_conv|thnn_conv", name) for name in names):
        return CONVOLUTIONS[FORWARD]
    if any(re.fullmatch(r"(add)?b?mm|linear|matmul|baddbmm|addmv|mv|dot", name) for name in names):
        return PRODUCT
    found = [_classify_torch_name(name) for name in names]
    if found and all(name == LAYOUT for name in found):
        return LAYOUT
    if any(kind in _NORMS for kind in kinds):
        return NORMALISATION
    if POOLING in kinds:
        return POOL
    return next((name for name in (NORMALISATION, POOL, REDUCTION) if name in found), POINTWISE)


def _classify_torch_name(name: str) -> str | None:
    return next((each for each, pattern in _TORCH_NAMES if re.search(pattern, name)), None)


def classify_xla(opcodes: Collection[str], kinds: Collection[str], is_update: bool) -> str:
    """Return the class of an instruction of XLA with these opcodes in it.

    A convolution's direction is not known here: it counts as forward.
    """
    if "convolution" in opcodes:
        return CONVOLUTIONS[FORWARD]
    if "dot" in opcodes:
        return PRODUCT
    if is_update:
        return OPTIMIZER
    if any(opcode.startswith(("all-reduce", "all-gather", "reduce-scatter", "collective")) for opcode in opcodes):
        return COMMUNICATION
    if all(opcode in _XLA_LAYOUT for opcode in opcodes):
        return LAYOUT
    if any(kind in _NORMS for kind in kinds):
        return NORMALISATION
    if POOLING in kinds or {"select-and-scatter"} & set(opcodes):
        return POOL
    if {"reduce", "reduce-window"} & set(opcodes):
        return REDUCTION
    return POINTWISE


def is_cast(operations: Collection[str]) -> bool:
    """Tell whether operations change the dtype of values and nothing else."""
    rest = {operation.removeprefix("aten::") for operation in operations} - _XLA_NOTHING - {"copy_", "empty_strided"}
    return bool(rest) and rest <= _CASTS


def choose_layer(layers: Sequence[str], kinds: Mapping[str, str], work: str) -> str:
    """Return the layer of a fused kernel: the first one of a kind that decides its class, else the first one.

    `layers` may be empty. The layer is then "".
    """
    deciding = {NORMALISATION: _NORMS, POOL: (POOLING,)}.get(work, ())
    named = [layer for layer in layers if kinds.get(layer, "parameters") != "parameters"]
    own = [layer for layer in named if kinds[layer] in deciding]
    return next(iter([*own, *named, *layers]), "")
