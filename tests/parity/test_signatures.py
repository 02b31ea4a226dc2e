"""The backends are twins: the same files, in them the same public names, and the same arguments to them."""

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import compare.base.interface
import jaxbackend
import jaxbackend.session
import torchbackend
import torchbackend.session

# Files that jax has alone, and why.
TWO_KINDS = "flax has two kinds of modules, torch one"
ONLY_JAX_FILES = {
    "functional.py": "jax's step and session know any model as pure functions; torch's know any as a module",
    "flags.py": "torch's switches are read back from torch itself",
    "threads.py": "torch.get_num_threads",
    "parts.py": "a process of torch's has its part and no other",
    "sums.py": "TorchInductor takes both sums of a batch norm in one reduction by itself",
    "pieces.py": "torch's operations are compiled already; jax's traced step can be cut",
    "own/adopted.py": "a user's model as such functions",
    "own/model.py": TWO_KINDS,
    "own/linenmodel.py": TWO_KINDS,
    "own/nnxmodel.py": TWO_KINDS,
}
ONLY_TORCH_FILES = {
    "buckets.py": "jax's gradients are arrays of a step, which exchange.py joins; torch's are in a graph of torch's",
    "programs.py": "jax has one process a machine, which compiles one program for all of its devices",
}
# Names that one backend has alone, by file, and why; a class stands for its methods too.
INHERITED = "torch's own forward is inherited"
ONLY_JAX = {
    "activations.py": {
        "Around": "torch has hooks",
        "intercepted": "see Around",
    },
    "layout.py": {
        "Path": "torch's variables are found by their tensors",
        "Leaves": "see Path",
        "Leaf.own": "torch's leaves assign in place",
        "name": "torch's leaves know theirs",
    },
    "own/flow.py": dict.fromkeys(
        ("ENTERED", "LEFT", "IMAGES_ORIGIN", "Reach", "Flow", "follow", "between"),
        "jax's program is followed once it is written, torch's functions while they are called",
    ),
    "roles.py": {
        "PRODUCTS": "torch's autocast chooses what computes in the compute dtype",
        "ORDER": "torch's modules have their variables in this order",
        "turned": "torch's kernels of transposed convolutions are only transposed",
        "arguments": "torch's modules are told whether they are in training",
    },
    "own/words.py": {
        "function": "jax compiles some functions under names of their own",
        "spoken": "some of jax's functions are known by several words",
    },
    "gradients.py": {"conv_transpose": "torch's own gradient does so"},
    "layers.py": dict.fromkeys([f"{layer}.__call__" for layer in ("ConvTranspose", "Dense")], INHERITED),
    "stems.py": {"LARGE": "in torch, products of windows were faster in every workload"},
    "precision.py": {
        "LossScale": "jax has no GradScaler; torch's own is used there",
        "scaled": "GradScaler.scale in torch",
        "unscaled": "GradScaler.unscale_ in torch",
    },
    "exchange.py": {
        "mean": "DistributedDataParallel takes the mean in torch",
        "sum_of_parts": "a process of torch's has its part and no other",
    },
    "overlap.py": dict.fromkeys(
        ("held", "before_tickets", "removed", "put", "Waiting"),
        "XLA orders a program by what needs what, TorchInductor's graph has an order",
    ),
    "parallel.py": {
        "AXIS": "torch's processes are one group without a name",
        "One": "jax has three ways, each over all devices of a process; torch one, with a process for each device",
        "Sharded": "see One",
        "Mapped": "see One",
        "way": "see One",
    },
    "pixels.py": {
        "Pixels": "a jitted step takes bytes and their levels as one argument; torch looks up before its step",
        "Images": "see Pixels",
    },
    "rematerialisation.py": {"applied": "jax's model is made for each pass; torch's blocks are changed once, by apply"},
    "resident.py": {
        "Resident.pending": "torch.cuda.synchronize waits for the copies too",
        "Resident.whole": "what torch has compiled is read from its counters, not from a program",
    },
    "stream.py": {"Stream.pending": "see Resident.pending", "Stream.whole": "see Resident.whole"},
    "step.py": {
        "TrainingStep.alone": "torch's session has the modules",
        "TrainingStep.programs": "torch counts the frames that it has compiled",
        "TrainState": "jax steps are pure functions over a state; torch's model and optimizer hold theirs",
        "TrainingStep.initial": "torch resets its state in place",
    },
    "tuning.py": {
        "several": "several steps are a scan over any step in jax, a captured CUDA graph with buffers in torch",
    },
}
ONLY_TORCH = {
    "activations.py": {
        "Layer": "torch's activations come into neutral layout by what their module is",
        "layers": "see Layer",
        "neutral": "see Layer",
    },
    "gradients.py": {
        "relu_normalised": "the gradient of jax's own asks what it was given",
        "stored": "XLA finds out by itself what to store",
    },
    "layout.py": {
        "Leaf.assign": "jax makes a new state, see Leaf.own",
        "leaves": "flax's variables carry names and have the neutral axes; torch's tensors need both beside them",
        "names": "a twin is read by the same kind of table as a user's model",
        "others": "a flax model that changes what does not cross is refused",
        "selected": "jax indexes, and XLA chooses the memory order",
        "channels_last_rows": "torch's layers need it beside the leaves",
        "channels_first_rows": "see channels_last_rows",
        "channels_last": "jax activations are channels-last already",
        "stacked": "jax arrays have one memory order",
    },
    "own/__init__.py": {
        "refuse_views": "jax arrays have one memory order",
        "refuse_other_dtypes": "jax's models are asked for their dtypes when they are adopted",
    },
    "own/flow.py": {"Watch": "see jax's follow"},
    "roles.py": {
        "at": "flax's modules are found by their paths while the model is called",
        "joined": "flax's paths are tuples",
        "tensors": "flax's states hold the variables",
        "axes": "flax's variables have the neutral axes",
        "is_channels_first": "jax activations are channels-last already",
        "images": "see is_channels_first",
        "always_channels_first": "see is_channels_first",
        "always_channels_last": "see is_channels_first",
    },
    "own/words.py": {"plain_name": "jax's primitives have plain names"},
    "exchange.py": {"in_step": "see tuning.py's prepare"},
    "memory.py": {"begin_anew": "jax finds its kernels in the cache; torch's cuDNN searches in every process"},
    "optim.py": {
        "schedule": "jax's rule takes the step's number and schedules itself",
        "rate_device": "see schedule",
    },
    "parallel.py": dict.fromkeys(("device", "wrapped"), "see jax's One"),
    "precision.py": {
        "Policy.autocast": "jax layers are told their compute dtype when they are made",
        "tf32_switches": "jax has one setting, torch one for products and one for convolutions",
        "loss_scale": "makes torch's GradScaler; LossScale.initial in jax",
    },
    "rematerialisation.py": {"apply": "see jax's applied"},
    "resident.py": {"Resident.captured": "jax's graphs are XLA's own matter"},
    "stream.py": {"Stream.captured": "see Resident.captured"},
    "step.py": {
        "TrainingStep.taken": "jax's state counts its steps",
        "TrainingStep.reset": "jax makes a new state",
        "TrainingStep.snapshot": "a captured graph updates in place; jax keeps the old state",
    },
    "tuning.py": {
        "Pass": "see overlap.py and buckets.py",
        "changes": "see Pass",
        "autograd": "jax.grad is in the step that is compiled",
        "OneStep": "a type that only Several needs",
        "Several": "see jax's several",
    },
}
# Arguments that one backend has alone. A step takes its state in jax and holds it in torch, and so on down.
HOLDS_STATE = "torch's step holds the state, jax's is given it"
ARGUMENTS = {
    ("activations.py", "recorded"): "torch's hooks take any layers, inputs too",
    ("layout.py", "Leaf"): "jax's stands for a variable by its path, torch's holds its tensor",
    ("layout.py", "Leaf.__init__"): "see Leaf",
    ("layout.py", "Leaf.neutral"): "an array of either framework",
    ("own/__init__.py", "Built"): "jax's knows the factory's name; torch's knows the dropout",
    ("own/__init__.py", "Built.__init__"): "see Built",
    ("own/__init__.py", "build"): "flax's factories are offered the policy's dtypes; linen's weights cost a program",
    ("own/__init__.py", "adopt"): "see build",
    ("roles.py", "variable"): "flax's kind of layer may show only in the traced program",
    ("roles.py", "settings"): "see variable",
    ("own/words.py", "word"): "an equation in jax, a function and its arguments in torch",
    ("layout.py", "signature"): "torch's is of a table, as its leaves are",
    ("layout.py", "export"): "a whole state in jax, tensors and their leaves in torch",
    ("layout.py", "assign"): "jax makes a new state and places it; torch's leaves know dtype and device",
    ("memory.py", "report"): "only XLA has a compiled program with a static plan",
    ("optim.py", "clip"): "a rule among others in jax; torch clips the gradients that its optimizer holds",
    ("optim.py", "build"): "torch's optimizers hold parameters and have kernel options of their own",
    ("optim.py", "export"): "torch's optimizer keys its moments by tensor",
    ("exchange.py", "reduction_dtype"): "jax's is read from the program, torch's from the model",
    ("exchange.py", "moments"): "jax's devices are known by an axis, torch's are one group",
    ("precision.py", "Policy"): "see exchange.py",
    ("precision.py", "Policy.__init__"): "see exchange.py",
    ("rematerialisation.py", "recomputed"): "jax's is read from the program, torch's from the model",
    ("resident.py", "Resident.__init__"): "where batches are placed is a way in jax, a device in torch",
    ("resident.py", "Resident"): "see Resident.__init__",
    ("step.py", "TrainingStep"): "see TrainingStep.__init__",
    ("pixels.py", "values"): "bytes and levels are one in jax; torch has two memory orders",
    ("resident.py", "Resident.dispatch"): HOLDS_STATE,
    ("stream.py", "Stream.dispatch"): HOLDS_STATE,
    ("step.py", "TrainingStep.__init__"): "autocast and GradScaler are made for a device type",
    ("step.py", "TrainingStep.__call__"): HOLDS_STATE,
    ("step.py", "TrainingStep.inspected"): HOLDS_STATE,
    ("step.py", "TrainingStep.evaluate"): HOLDS_STATE,
    ("step.py", "TrainingStep.layer_outputs"): HOLDS_STATE,
    ("overlap.py", "beside_exchanges"): "jax's is for what is traced within it, torch's for a graph that has been",
    ("tuning.py", "prepare"): "torch's compiler has to be told of exchanges; jax's device has to be made ready",
    ("tuning.py", "compiled"): "what is compiled is a step in jax, forward and loss in torch",
}


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
    if "forward" in own:  # torch's __call__ goes through it
        own["__call__"] = own.pop("forward")
    kept = ("__init__", "__call__")
    return {
        name: value
        for name, value in own.items()
        if (name in kept or not name.startswith("_"))
        and (callable(value) or isinstance(value, (property, classmethod)))
    }


def arguments(value: Any) -> list[tuple[str, Any, Any]] | None:
    """Return name, kind and default of each argument; types differ by framework."""
    function = value.__init__ if inspect.isclass(value) and "__init__" in vars(value) else value
    if not inspect.isfunction(function):
        return None
    return [(item.name, item.kind, item.default) for item in inspect.signature(function).parameters.values()]


def test_both_backends_have_the_same_files():
    both = [sorted({*files(package)} - only.keys()) for package, only in FILES]
    assert both[0] == both[1]
    assert all(only.keys() <= {*files(package)} for package, only in FILES)


FILES = (jaxbackend, ONLY_JAX_FILES), (torchbackend, ONLY_TORCH_FILES)
CODE = [file for file in files(torchbackend) if file != "__main__.py" and file not in ONLY_TORCH_FILES]


def alone(package: ModuleType, file: str) -> set[str]:
    allowed = (ONLY_JAX if package is jaxbackend else ONLY_TORCH).get(file, {})
    return {name for name in public(package, file) if name in allowed or name.partition(".")[0] in allowed}


@pytest.mark.parametrize("file", CODE)
def test_both_files_have_the_same_public_names_in_the_same_order(file: str):
    shared = [
        [name for name in public(package, file) if name not in alone(package, file)]
        for package in (jaxbackend, torchbackend)
    ]
    assert shared[0] == shared[1]


@pytest.mark.parametrize("file", CODE)
def test_both_files_have_the_same_arguments_to_the_same_names(file: str):
    first, second = public(jaxbackend, file), public(torchbackend, file)
    differing = {
        name: (arguments(first[name]), arguments(second[name]))
        for name in first.keys() & second.keys()
        if not name.endswith("__call__") or file == "step.py"  # a layer's input has other axes and another name
        if arguments(first[name]) != arguments(second[name]) and (file, name) not in ARGUMENTS
        if not (inspect.isclass(first[name]) and (file, f"{name}.__init__") in ARGUMENTS)
    }
    assert not differing


def test_the_lists_of_differences_name_nothing_that_is_not_one():
    for package, other, lists in ((jaxbackend, torchbackend, ONLY_JAX), (torchbackend, jaxbackend, ONLY_TORCH)):
        for file, names in lists.items():
            assert names.keys() <= public(package, file).keys(), file
            assert not names.keys() & public(other, file).keys(), file
    for file, name in ARGUMENTS:
        first, second = public(jaxbackend, file)[name], public(torchbackend, file)[name]
        assert arguments(first) != arguments(second), (file, name)


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
