"""A user's own model: made by the user's factory, checked, and named by its pair's table."""

from dataclasses import dataclass

import jax
import numpy as np
from flax import linen, nnx, traverse_util

from compare.base import names
from compare.base.interface import Refused
from compare.base.workloads import ModelSpec, Workload
from compare.worker import factories
from jaxbackend.losses import TaskLoss
from jaxbackend.only import exact_attention, run_settings
from jaxbackend.only.adapter import AdaptedModel
from jaxbackend.only.functional import Functional
from jaxbackend.only.linen_model import LinenModel
from jaxbackend.only.nnx_model import NnxModel
from jaxbackend.only.user_model import Arguments, UserModel, describe_inputs, guard, spell_path
from jaxbackend.precision import Policy

_ALLOWED = "allowed: a factory that returns a flax.linen or flax.nnx module"


@dataclass(frozen=True)
class Built:
    """A factory's model, its dropout switched off.

    Attributes:
        model: the model, linen's or nnx's.
        reference: the factory's name.
        dropout: paths of the dropout layers.
        source_sha256: hash of the file that defines the factory.
        notes: remarks on the call for a reader.
    """

    model: UserModel
    reference: str
    dropout: tuple[str, ...]
    source_sha256: str
    notes: tuple[str, ...]


def build(spec: ModelSpec, policy: Policy, initialised: bool = False) -> Built:
    """Call the factory of a pair's JAX side, with the policy's dtypes for arguments of these names.

    A linen model's variables have their initial values only if `initialised`, which compiles another program.

    Raises:
        Refused: as `compare.worker.factories.make`. The factory returns no flax model, or one that cannot run on the
            images, or has weights that are not finite.
    """
    reference = spec.arguments["jax"]
    exact_attention.install()
    seed = spec.arguments.get("initial_seed", 0)
    offered = {"rngs": nnx.Rngs(seed), "dtype": policy.compute_dtype, "param_dtype": policy.parameter_dtype}
    # Constants of the user's file are float32, as in torch's file, whatever precision is recorded first.
    single = jax.enable_x64(False)
    given = spec.arguments["arguments"]["jax"]
    result = factories.make(reference, given, offered=offered, other="torch", importing=single)
    images = describe_inputs(spec.inputs, spec.image, 2, policy.parameter_dtype)
    if isinstance(result.model, type):
        raise Refused(f"{reference} returns the class {result.model.__name__}, not a model made of it; {_ALLOWED}")
    model: UserModel
    if isinstance(result.model, linen.Module):
        module = run_settings.set_dtypes(result.model, policy, spec.arguments["arguments"]["jax"])
        model = guard(
            lambda: LinenModel(module, images, initialised, Arguments(module, spec.inputs), policy, seed), reference
        )
    elif isinstance(result.model, nnx.Module):
        arguments = Arguments(result.model, spec.inputs)
        model = guard(lambda: NnxModel(result.model, images, arguments, policy), reference)
    else:
        kind = f"{type(result.model).__module__}.{type(result.model).__qualname__}"
        raise Refused(f"{reference} returns a {kind}; {_ALLOWED}")
    _check_finite(model, reference)
    notes = [
        f"axis_name {name!r} is bound to one device: each device reduces over its own images" for name in model.axes
    ]
    return Built(model, reference, model.dropout, result.source_sha256, (*result.notes, *notes))


def adopt(spec: ModelSpec, policy: Policy, initialised: bool = False) -> Functional:
    """Return the JAX model of a matched pair, under its neutral names. `initialised` is as for `build`.

    Raises:
        Refused: as `build`. The pair has no table of names, or the table names a variable or layer that is missing. The
            model does not compute in the policy's dtypes.
    """
    if "names" not in spec.arguments:
        raise Refused("this pair has not been matched: its layers have no common names yet")
    table, built = names.from_json(spec.arguments["names"]["jax"]), build(spec, policy, initialised)
    return AdaptedModel(built.model, built.reference, table, spec.image, policy)


def make_loss(workload: Workload, policy: Policy) -> TaskLoss | None:
    """Return the loss of a workload's task, or None without a task.

    Raises:
        Refused: the user's own loss function cannot be imported.
    """
    if workload.task is None:
        return None
    reference = workload.model.arguments.get("losses", {}).get("jax")
    function = None if reference is None else factories.load_function(reference)
    return TaskLoss(workload.task, policy.parameter_dtype, function)


def _check_finite(model: UserModel, reference: str) -> None:
    for state in (model.parameters, model.buffers):
        for path, array in traverse_util.flatten_dict(state).items():
            if not np.isfinite(jax.device_get(array)).all():  # NumPy compiles nothing for each shape
                raise Refused(f"{reference}: {spell_path(path)} contains NaN or infinity; allowed: finite weights")
