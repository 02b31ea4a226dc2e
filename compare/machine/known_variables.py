"""The frameworks' variables that samestep sets itself, reads back or can leave alone. Reports name all others."""

from collections.abc import Iterator, Mapping

from compare.machine import resources

PREFIXES = (
    *("JAX_", "XLA_", "PJRT_", "TF_", "TORCH", "PYTORCH_", "ATEN_", "CUDA_", "CUDNN_", "CUBLAS", "NCCL_", "TRITON_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_"),
)
"""The beginnings of the names of variables that the frameworks and their libraries read."""

_OF_OTHERS = (
    *("TF_CLI_", "TF_DATA_DIR", "TF_INPUT", "TF_IN_AUTOMATION", "TF_LOG", "TF_PLUGIN_", "TF_REGISTRY_", "TF_TOKEN_"),
    *("TF_VAR_", "TF_WORKSPACE", "TORCHX_"),  # of Terraform and a launcher
)
_OF_SEVERAL_DEVICES = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_", "CUDA_DEVICE_MAX_CONNECTIONS")
_SET_FOR_CHILDREN = (
    *("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"),
    *("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD", "TRITON_CACHE_DIR"),
    *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)
_READ_BACK = (
    *("JAX_ENABLE_X64", "JAX_DEBUG_NANS", "JAX_DEBUG_INFS", "JAX_ENABLE_CHECKS", "JAX_DISABLE_JIT"),
    *("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "XLA_FLAGS", "OMP_THREAD_LIMIT"),
    *(name for names in resources.CAUSES.values() for name in names),
)
_HARMLESS = (
    *("CUDA_HOME", "CUDA_PATH", "CUDA_VERSION", "CUDNN_VERSION", "NCCL_VERSION", "TORCH_CUDA_ARCH_LIST"),
    *("TF_CPP_MIN_LOG_LEVEL", "TORCH_HOME", "TORCH_LOGS"),
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),  # scikit-learn sets them in samestep's own process
)
_KNOWN = frozenset((*_SET_FOR_CHILDREN, *_READ_BACK, *_HARMLESS))
_KNOWN_FLAGS = frozenset(
    (
        *("xla_cpu_multi_thread_eigen", "xla_cpu_max_isa", "xla_backend_optimization_level"),
        *("xla_llvm_disable_expensive_passes", "xla_disable_all_hlo_passes", "xla_disable_hlo_passes"),
        *("xla_allow_excess_precision", "xla_force_host_platform_device_count", "xla_gpu_autotune_level"),
        *("xla_gpu_deterministic_ops", "xla_gpu_enable_command_buffer", "xla_gpu_command_buffer_scheduling_mode"),
        "xla_gpu_enable_latency_hiding_scheduler",
    )
)


def is_of_frameworks(name: str) -> bool:
    """Tell whether the frameworks or their libraries may read a variable of that name."""
    return name.startswith(PREFIXES) and not name.startswith(_OF_OTHERS)


def find_unknown(variables: Mapping[str, str], devices: int) -> Iterator[str]:
    """Yield the names of the user's variables, and of flags in XLA_FLAGS, that may change a time without a word.

    `devices` is the number of devices of the run.
    """
    for name in sorted(variables):
        is_idle = devices == 1 and name.startswith(_OF_SEVERAL_DEVICES)
        if is_of_frameworks(name) and name not in _KNOWN and not is_idle:
            yield name
    flags = dict.fromkeys(flag.partition("=")[0].lstrip("-") for flag in variables.get("XLA_FLAGS", "").split())
    yield from (f"XLA_FLAGS --{flag}" for flag in flags if flag not in _KNOWN_FLAGS)
