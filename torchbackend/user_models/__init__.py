"""A user's own model: made by the user's factory, checked, and named by its pair's table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils import parametrize

from compare.base import names
from compare.base.errors import take_first_line
from compare.base.interface import Refused
from compare.base.names import Names
from compare.base.task import Input, unpack_inputs
from compare.base.workloads import ModelSpec, Workload
from compare.worker import factories
from torchbackend import roles
from torchbackend.losses import TaskLoss
from torchbackend.only import functional_dropout, model_inputs, weight_norm
from torchbackend.precision import Policy

# Classes of stochastic depth as people copy them (timm, torchvision), and the attribute with their rate.
_DROPPED_PATHS = {"DropPath": "drop_prob", "StochasticDepth": "p"}


@dataclass(frozen=True)
class Built:
    """A factory's model, its dropout switched off.

    Attributes:
        model: the model, in training mode.
        reference: the factory's name.
        dropout: paths of the dropout layers.
        source_sha256: hash of the file that defines the factory.
        notes: remarks on the call for a reader.
    """

    model: nn.Module
    reference: str
    dropout: tuple[str, ...]
    source_sha256: str
    notes: tuple[str, ...]


def build(spec: ModelSpec, policy: Policy) -> Built:
    """Call the factory of a pair's torch side, and return its model on the host in the parameters' dtype.

    Raises:
        Refused: as `compare.worker.factories.make`. The factory returns no torch.nn.Module, or a compiled, scripted or
            wrapped one. The model has lazy or parametrized layers, or weights that are not finite.
    """
    reference, arguments = spec.arguments["torch"], spec.arguments["arguments"]["torch"]
    functional_dropout.switch_off()
    with torch.random.fork_rng(devices=[]):
        # As for flax's models, so that a factory gives the same initial weights again.
        torch.manual_seed(spec.arguments.get("initial_seed", 0))
        result = factories.make(reference, arguments, offered={}, other="jax")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # it would stay for all that this process does
    _check_kind(result.model, reference)
    model: nn.Module = result.model
    dropout = _switch_off_dropout(model)
    _initialise_lazy(model, spec, reference)
    _check(model, reference)
    _keep_constants(model, spec.arguments.get("constants", ()))
    model = model.to(policy.parameter_dtype).train()
    notes = list(result.notes)
    if default != torch.float32:
        notes.append(f"{reference} sets torch's default dtype to {default}: samestep's precision replaces it")
    return Built(model, reference, dropout, result.source_sha256, tuple(notes))


def adopt(spec: ModelSpec, policy: Policy) -> tuple[nn.Module, Names]:
    """Return the torch model of a matched pair, and the table of its names.

    Raises:
        Refused: as `build`. The pair has no table of names, or the table names a variable or layer that is missing.
    """
    reference = spec.arguments["torch"]
    if "names" not in spec.arguments:
        raise Refused(f"{reference}: the pair is yet to be matched; a session needs the table of its names")
    table, model = names.from_json(spec.arguments["names"]["torch"]), build(spec, policy).model
    known = {*dict(model.named_parameters(remove_duplicate=False)), *dict(model.named_buffers())}
    missing = [each.own for each in table.variables if names.split_part(each.own)[0] not in known]
    places = {roles.ROOT, *dict(model.named_modules()), *known}
    missing += [own for own in table.layers if own.partition("#")[0] not in places]
    if missing:
        raise Refused(f"{reference}: the model has no {missing[0]!r}, which the pair's table names; match it again")
    if spec.inputs:
        inputs, by_name = spec.inputs, model_inputs.takes_by_name(model, spec.inputs)

        def unpack(module: nn.Module, row: tuple[Any, ...], options: dict[str, Any]) -> Any:
            del module
            values = unpack_inputs(inputs, row[0], model_inputs.convert)
            return model_inputs.make_arguments(inputs, values, by_name=by_name, options=options)

        model.register_forward_pre_hook(unpack, with_kwargs=True)
    return model, table


def make_loss(workload: Workload, policy: Policy) -> TaskLoss | None:
    """Return the loss of a workload's task, or None without a task.

    Raises:
        Refused: the user's own loss function cannot be imported.
    """
    if workload.task is None:
        return None
    reference = workload.model.arguments.get("losses", {}).get("torch")
    function = None if reference is None else factories.load_function(reference)
    return TaskLoss(workload.task, policy.parameter_dtype, function)


def _initialise_lazy(model: nn.Module, spec: ModelSpec, reference: str) -> None:
    """Run a model with lazy layers once, so that they get their shapes."""
    if not any(map(nn.parameter.is_lazy, (*model.parameters(), *model.buffers()))):
        return
    inputs = spec.inputs or (Input("", spec.image),)
    values = model_inputs.make_inputs(inputs, 2)
    arguments, options = model_inputs.make_arguments(
        inputs, values, by_name=model_inputs.takes_by_name(model, inputs), options={}
    )
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model(*arguments, **options)
    except Exception as error:
        raise Refused(
            f"{reference}: the first call of its lazy layers raised {type(error).__name__}: {take_first_line(error)}"
            f"{factories.find_raise(error)}"
        ) from error


def _keep_constants(model: nn.Module, names: Sequence[str]) -> None:
    """Let buffers without a counterpart stay as the factory makes them: they do not cross then."""
    for name in names:
        path, _, attribute = name.rpartition(".")
        model.get_submodule(path)._non_persistent_buffers_set.add(attribute)


def _check_kind(model: object, reference: str) -> None:
    allowed = "allowed: a factory that returns a torch.nn.Module"
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise Refused(f"{reference} returns the class {model.__name__}, not a model made of it; {allowed}")
    if not isinstance(model, nn.Module):
        raise Refused(f"{reference} returns a {type(model).__module__}.{type(model).__qualname__}; {allowed}")
    wrapped = isinstance(model, (torch.jit.ScriptModule, nn.DataParallel, nn.parallel.DistributedDataParallel))
    if wrapped or hasattr(model, "_orig_mod"):  # a result of torch.compile
        raise Refused(
            f"{reference} returns a {type(model).__name__}; allowed: the model as it is, neither compiled nor wrapped "
            "(samestep compiles it where the tuning says so)"
        )


def _check(model: nn.Module, reference: str) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            raise Refused(
                f"{reference}: {path!r} is a torch.nn.{type(module).__name__}, and samestep matches no recurrent "
                "layers; allowed: models without them"
            )
        if isinstance(module, nn.MultiheadAttention) and module.bias_k is not None:
            raise Refused(
                f"{reference}: {path!r} is a torch.nn.MultiheadAttention with add_bias_kv, which flax's attention does "
                "not have; allowed: add_bias_kv=False"
            )
        if weight_norm.find_tensors(module):
            continue
        if parametrize.is_parametrized(module):
            raise Refused(
                f"{reference}: the parameters of {path!r} are computed from others ({_name_parametrizations(module)}); "
                "allowed: weight norm over the outputs of a convolution or dense layer; remove others in the factory "
                "(torch.nn.utils.parametrize.remove_parametrizations)"
            )
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        if old := next((name for name in hooks if name in ("WeightNorm", "SpectralNorm")), None):
            raise Refused(
                f"{reference}: {path!r} has a torch.nn.utils {old}, which computes its weight from other parameters; "
                "allowed: weight norm over the outputs of a convolution or dense layer; remove others in the factory "
                "(torch.nn.utils.remove_weight_norm or remove_spectral_norm)"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise Refused(f"{reference}: {name!r} is lazy, without a shape; call the model once in the factory")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise Refused(f"{reference}: {name!r} contains NaN or infinity; allowed: finite weights")


def _name_parametrizations(module: nn.Module) -> str:
    """Return the names of functions in torch.nn.utils.parametrizations, or of a user's own classes."""
    parts: Any = module.parametrizations
    names = dict.fromkeys(type(part).__name__ for every in parts.values() for part in every)
    own = {"_SpectralNorm": "spectral_norm", "_WeightNorm": "weight_norm", "_Orthogonal": "orthogonal"}
    return ", ".join(own.get(name, name) for name in names)


def _switch_off_dropout(model: nn.Module) -> tuple[str, ...]:
    dropout: list[str] = []
    for path, module in model.named_modules():
        attribute = "p" if isinstance(module, _DropoutNd) else _DROPPED_PATHS.get(type(module).__name__)
        if isinstance(module, nn.MultiheadAttention) and module.dropout:
            attribute = "dropout"
        if attribute is not None and hasattr(module, attribute):
            rate = getattr(module, attribute)
            setattr(module, attribute, 0.0)
            dropout.append(f"{path} with p={rate:g}")
    return tuple(dropout)
