"""The backends are twins: the same files, in them the same public names, and the same arguments to them.

Files that only one backend needs lie in its folder `only/`. `DIFFERENCES` lists every other difference.
"""

import ast
import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flax import nnx
from torch import nn

import compare.base.interface
import jaxbackend
import jaxbackend.session
import torchbackend
import torchbackend.session


@dataclass(frozen=True)
class Difference:
    """Differences of the backends for one reason.

    Attributes:
        reason: the reason.
        jax, torch: names `FILE:NAME` that only this backend has. A class includes its methods.
        arguments: names with different arguments.
    """

    reason: str
    jax: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


# A function may also take the training state in jax, where torch holds it: see `takes_state`.
DIFFERENCES = (
    Difference(
        "jax makes a new state, torch changes and counts its own in place",
        jax=("step.py:TrainState", "step.py:TrainingStep.initial"),
        torch=("step.py:TrainingStep.count", "step.py:TrainingStep.reset", "step.py:TrainingStep.snapshot"),
    ),
    Difference(
        "calls of flax's modules are intercepted in every pass; torch's modules keep hooks",
        jax=("activations.py:Around", "activations.py:PATH", "activations.py:intercept", "layers.py:Computed"),
        arguments=("activations.py:record", "rematerialisation.py:apply"),
    ),
    Difference(
        "jax traces the step as a function, torch the model on another device",
        jax=("step.py:TrainingStep.train",),
        arguments=("operations.py:count",),
    ),
    Difference(
        "a leaf is found by a variable's path in jax, and holds the variable, or rows of one, in torch",
        torch=("layout.py:leaves", "layout.py:Leaf.take_rows"),
        arguments=("layout.py:Leaf",),
    ),
    Difference(
        "a flax layer may show its settings only in the traced program, and have features on several axes",
        jax=("roles.py:is_flat",),
        arguments=("roles.py:settings",),
    ),
    Difference(
        "initial values of a flax.linen model cost a compiled program",
        arguments=("user_models/__init__.py:build", "user_models/__init__.py:adopt"),
    ),
    Difference(
        "each compiler needs other gradients written out",
        jax=("gradients.py:conv_transpose", "gradients.py:sums_of_squares", "gradients.py:affine"),
        torch=("gradients.py:relu_normalised", "gradients.py:stored"),
    ),
    Difference(
        "XLA orders a program by its dependencies; TorchInductor's graph has an order to change",
        jax=tuple(
            f"overlap.py:{name}" for name in ("Waiting", "hold", "take_tickets", "remove_waiting", "set_waiting")
        ),
        arguments=("overlap.py:overlap_exchanges",),
    ),
    Difference(
        "one process drives all devices in jax, by one of three strategies; torch has a process a device",
        jax=("exchange.py:AXIS", "parallel.py:Strategy", "parallel.py:choose_strategy"),
        torch=("parallel.py:device", "parallel.py:wrap"),
        arguments=("resident.py:Resident.__init__", "step.py:TrainingStep.__init__"),
    ),
    Difference(
        "bytes and their levels are one argument of a jitted step; torch looks values up in two memory orders",
        arguments=("pixels.py:values",),
    ),
    Difference(
        "facts are read from the compiled program in jax, and from the model or the device in torch",
        jax=("resident.py:Resident.dispatch_program", "stream.py:Stream.dispatch_program"),
        torch=("resident.py:Resident.captured", "stream.py:Stream.captured"),
        arguments=("exchange.py:reduction_dtype", "memory.py:report", "rematerialisation.py:count_recomputed"),
    ),
    Difference(
        "cuDNN searches kernels in every process of torch; jax finds them in its cache",
        torch=("memory.py:reset_peaks",),
    ),
    Difference(
        "optax's rule clips and schedules by itself; torch's step does so before it updates",
        torch=("optim.py:schedule", "optim.py:rate_device"),
        arguments=("optim.py:build", "optim.py:clip"),
    ),
    Difference(
        "a compiled step is told its platform in jax; in torch, what devices exchange, and who shares it and its trace",
        arguments=("tuning.py:compile_step", "tuning.py:prepare"),
    ),
)
MOST_DIFFERENCES = 15


def names_of(kind: str) -> set[str]:
    return {name for difference in DIFFERENCES for name in getattr(difference, kind)}


def takes_state(of_jax: Any, of_torch: Any) -> bool:
    """Tell whether jax's function takes the training state first, and otherwise the same arguments as torch's."""
    first, second = arguments(of_jax), arguments(of_torch)
    if not first or second is None:
        return False
    names = [name for name, _, _ in first]
    return "state" in names[:2] and [item for item in first if item[0] != "state"] == second


def neutral(name: str) -> str:
    return (
        name.replace("JaxSession", "Session")
        .replace("TorchSession", "Session")
        .replace("JaxBackend", "Backend")
        .replace("TorchBackend", "Backend")
    )


def files(package: ModuleType) -> list[str]:
    root = Path(package.__path__[0])
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.py"))


def module(package: ModuleType, file: str) -> ModuleType:
    name = file.removesuffix(".py").replace("/", ".").removesuffix("__init__").rstrip(".")
    return importlib.import_module(f"{package.__name__}.{name}".rstrip("."))


def public(package: ModuleType, file: str) -> dict[str, Any]:
    """Return what a file itself defines: functions, classes, constants, and the classes' public methods."""
    tree = ast.parse((Path(package.__path__[0]) / file).read_text())
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names += [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    found: dict[str, Any] = {}
    for name in names:
        if name.startswith("_"):
            continue
        value = found[neutral(name)] = getattr(module(package, file), name)
        if inspect.isclass(value):
            found |= {f"{neutral(name)}.{key}": method for key, method in methods(value).items()}
    return found


def methods(owner: type) -> dict[str, Any]:
    own = {**owner.__dict__}
    is_module = issubclass(owner, (nnx.Module, nn.Module))  # both kinds have a call, inherited or not
    kept = ("__init__",) if is_module else ("__init__", "__call__")
    own.pop("forward", None)
    return {
        name: value
        for name, value in own.items()
        if (name in kept or not name.startswith("_"))
        and (callable(value) or isinstance(value, (property, classmethod)))
    }


def arguments(value: Any) -> list[tuple[str, Any, Any]] | None:
    """Return name, kind and default of each argument. Types differ by framework."""
    function = value.__init__ if inspect.isclass(value) and "__init__" in vars(value) else value
    if not inspect.isfunction(function):
        return None
    return [(item.name, item.kind, item.default) for item in inspect.signature(function).parameters.values()]


SHARED_FILES = [file for file in files(torchbackend) if not file.startswith("only/")]
CODE = [file for file in SHARED_FILES if file != "__main__.py"]


def test_both_backends_have_the_same_files():
    assert [file for file in files(jaxbackend) if not file.startswith("only/")] == SHARED_FILES


def test_files_of_one_backend_share_no_name():
    only = [{file for file in files(package) if file.startswith("only/")} for package in (jaxbackend, torchbackend)]
    assert only[0] & only[1] == {"only/__init__.py"}


def shared(package: ModuleType, file: str) -> list[str]:
    """Return the public names of a file but for those that this backend may have alone."""
    allowed = names_of("jax" if package is jaxbackend else "torch")
    return [
        name for name in public(package, file) if not {f"{file}:{name}", f"{file}:{name.partition('.')[0]}"} & allowed
    ]


@pytest.mark.parametrize("file", CODE)
def test_both_files_have_the_same_public_names_in_the_same_order(file: str):
    assert shared(jaxbackend, file) == shared(torchbackend, file)


@pytest.mark.parametrize("file", CODE)
def test_both_files_have_the_same_arguments_to_the_same_names(file: str):
    first, second = public(jaxbackend, file), public(torchbackend, file)
    differing = {
        name: (arguments(first[name]), arguments(second[name]))
        for name in first.keys() & second.keys()
        if arguments(first[name]) != arguments(second[name]) and not takes_state(first[name], second[name])
        if not {f"{file}:{name}", f"{file}:{name}.__init__", f"{file}:{name.removesuffix('.__init__')}"}
        & names_of("arguments")
    }
    assert not differing


def test_the_list_of_differences_is_short_and_names_only_differences():
    assert len(DIFFERENCES) <= MOST_DIFFERENCES
    for package, other, kind in ((jaxbackend, torchbackend, "jax"), (torchbackend, jaxbackend, "torch")):
        for file, _, name in (entry.partition(":") for entry in names_of(kind)):
            assert name in public(package, file), (file, name)
            assert name not in public(other, file), (file, name)
    for file, _, name in (entry.partition(":") for entry in names_of("arguments")):
        first, second = public(jaxbackend, file)[name], public(torchbackend, file)[name]
        assert arguments(first) != arguments(second), (file, name)
        assert not takes_state(first, second), (file, name)


@pytest.mark.parametrize("kind", ["Session", "Backend"])
@pytest.mark.parametrize("package", [jaxbackend, torchbackend], ids=["jax", "torch"])
def test_the_classes_are_the_interface_s_and_no_more(package: ModuleType, kind: str):
    protocol = methods(getattr(compare.base.interface, kind))
    prefix = "Jax" if package is jaxbackend else "Torch"
    own = methods(getattr(module(package, f"{kind.lower()}.py"), prefix + kind))
    assert own.keys() - {"__init__"} == protocol.keys() - {"__init__", "name"}
    for name in own.keys() - {"__init__"}:
        if isinstance(protocol[name], property):
            assert isinstance(own[name], property)
            assert inspect.signature(own[name].fget) == inspect.signature(protocol[name].fget)
        elif name == "open":  # returns its own kind of session
            assert arguments(own[name]) == arguments(protocol[name])
        else:
            assert inspect.signature(own[name]) == inspect.signature(protocol[name]), name


@pytest.mark.parametrize("package", [jaxbackend, torchbackend], ids=["jax", "torch"])
def test_a_backend_has_its_package_s_name(package: ModuleType):
    assert f"{module(package, 'backend.py').BACKEND.name}backend" == package.__name__
