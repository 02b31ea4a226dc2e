"""Which layers and functions each value of a user's torch model comes from, watched during one pass."""

from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from compare.base.element_order import Bindings, image_order
from compare.base.interface import Refused
from compare.base.names import join_path
from compare.base.trace import IMAGES, Layer, Layout, Variable, name_factor, number_call, take_padding
from torchbackend import roles
from torchbackend.only import attention, function_names, recognition, weight_norm
from torchbackend.only.exact_gradients import INEXACT
from torchbackend.only.modules import has_own_forward, is_channels_first, neutral_shape, tensors
from torchbackend.only.order_tracker import OrderTracker
from torchbackend.only.recognition import Doings, Operation

_RANDOM = ("bernoulli", "rand", "randn", "rand_like", "randn_like", "normal", "uniform", "randint", "randperm")
_RANDOM += ("multinomial", "exponential", "random", "rrelu")


@dataclass(frozen=True)
class _Origin:
    """The nearest layers that a tensor comes from (-1: the images), and the functions since, in order of calls."""

    layers: frozenset[int] = frozenset()
    functions: frozenset[int] = frozenset()

    def __or__(self, other: "_Origin") -> "_Origin":
        return _Origin(self.layers | other.layers, self.functions | other.functions)


class CallWatcher(TorchFunctionMode):
    """Sees every function of torch that a model calls, and within `hooks` every module."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[torch.Tensor],
        reference: str,
        bindings: Bindings,
        uncalled: frozenset[str],
    ) -> None:
        """Start to watch. `uncalled` are the modules with variables that only functions outside of them use."""
        super().__init__()
        self._uncalled = uncalled
        self._orders = OrderTracker(lambda tensor: self._owners.get(id(tensor), ("", ""))[1], bindings)
        self.layers: list[Layer] = []
        self._model, self._reference = model, reference
        self._functions: list[str] = []
        self._open: list[tuple[str, int | None]] = []  # modules being called: path, index of its layer
        self._attended: list[Sequence[torch.Tensor]] = []  # the inputs of attentions being called
        self._own: dict[str, list[Variable]] = {}
        self._own_by_id = defaultdict[str, dict[int, Variable]](dict)
        self._owners: dict[int, tuple[str, str]] = {}  # module and name of a variable, by the id of its tensor
        for path, variable, tensor in _variables(model):
            self._own.setdefault(path, []).append(variable)
            self._own_by_id[path][id(tensor)] = variable
            self._owners[id(tensor)] = path, variable.own
        self._doings: dict[int, Doings] = {}  # by the index of an open layer of no known kind
        self._dropped = set[int]()
        self._applied = defaultdict[frozenset[int], list[str]](list)  # functions by the layers that their data is from
        self._seen, self._elsewhere = dict[str, int](), set[str]()  # names in the order of their first use
        self._sources = dict[int, frozenset[str]]()  # names behind a tensor that comes from no data, by its id
        self._joined = dict[str, int]()  # names by the moment of their first use with data
        self._tensors: list[torch.Tensor] = []  # the id of a deleted tensor could go to another one
        self._origins: dict[int, _Origin] = {}
        self._nodes: dict[Any, _Origin] = {}
        for images in inputs:
            self._set(images, _Origin(frozenset([-1])))
            if images.is_floating_point() and images.ndim > 2:
                self._orders.set(images, image_order(tuple(images.shape), 1))

    def list_layers(self) -> tuple[Layer, ...]:
        """Return all layers, with the orders of their variables."""
        return tuple(
            replace(
                layer,
                variables=tuple(map(self._with_orders, layer.variables)),
                applied=tuple(self._applied[frozenset([index])]),
            )
            for index, layer in enumerate(self.layers)
            if index not in self._dropped
        )

    def _with_orders(self, variable: Variable) -> Variable:
        variable = replace(variable, moment=self._joined.get(variable.own, 0))
        axes = self._orders.axes.get(variable.own, ())
        if variable.role == "free" and len(axes) == len(variable.shape) and not variable.axes:
            return replace(variable, shape=tuple(variable.shape[axis] for axis in axes), axes=axes)
        orders = self._orders.variables.get(variable.own, {})
        return replace(
            variable, orders=tuple(orders.get(axis, ()) for axis in range(len(variable.shape))) if orders else ()
        )

    @property
    def place(self) -> str:
        """The module that is being called, for messages."""
        return next((repr(path) for path, _ in reversed(self._open) if path), "the model's forward")

    @contextmanager
    def hooks(self) -> Generator[None]:
        """Watch modules, too, while the context lasts."""
        with ExitStack() as stack:
            for path, module in self._model.named_modules():
                if weight_norm.is_part(path):
                    continue
                before = self._before(path)  # comes before the hook that computes a weight from other parameters
                stack.enter_context(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
                stack.enter_context(module.register_forward_hook(self._after))
            yield

    def origin(self, tensor: torch.Tensor) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the layers that a tensor comes after and the functions between, in execution order."""
        return self._describe(self._find_origin(tensor))

    def find_used(self) -> Collection[str]:
        """Return the variables that some function has read.

        Raises:
            Refused: a function has read one, but its layer was never called.
        """
        named = {variable.own for layer in self.layers for variable in layer.variables}
        for path, name in self._owners.values():
            if path in self._uncalled and name in self._elsewhere and name not in named:
                raise Refused(
                    f"{self._reference}: {name!r} is used although {path!r} is never called "
                    f"({type(self._model.get_submodule(path)).__name__}); allowed: layers that are called, "
                    "or a parameter that the module using it holds itself"
                )
        return self._seen.keys()

    def find_uncalled(self) -> frozenset[str]:
        """Return the modules that were never called, although functions have used their variables."""
        called = {layer.path.partition("#")[0] for layer in self.layers}
        paths = {path for path, name in self._owners.values() if name in self._elsewhere}
        return frozenset(path for path in paths if (path or roles.ROOT) not in called)

    def find_reused(self) -> tuple[str, ...]:
        """Return the variables that are also used outside their layer's own call."""
        return tuple(
            name
            for path, name in sorted(self._owners.values())
            if name in self._elsewhere and path not in self._uncalled
        )

    def notes(self) -> list[str]:
        """Return notes on variables that are used in two places, and on functions with an inexact gradient."""
        twice = [f"{name} is also used outside its layer's own call" for name in self.find_reused()]
        inexact = [
            f"torch's float64 gradient of {name} is inexact ({INEXACT[name]}): the certificate uses the exact one"
            for name in dict.fromkeys(self._functions)
            if name in INEXACT
        ]
        return [*twice, *inexact]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch and remember where its results come from."""
        inputs = _tensors_in((args, kwargs))
        for tensor in inputs:
            self._note_use(tensor)
        self._refuse_random(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        name = function_names.plain_name(func)
        results = _tensors_in(args[:1] if name == "setitem" else result)
        self._follow_sources(inputs, results)
        if results and inputs:
            self._note_call(func, args, kwargs or {}, inputs, results)
            if name != "setitem":
                self._orders.note(name, func, args, kwargs or {}, results)
            self._recognise(name, args, kwargs or {}, inputs, results)
        return result

    def _recognise(
        self, name: str, args: Any, keywords: Any, inputs: list[torch.Tensor], results: list[torch.Tensor]
    ) -> None:
        """Note a function that is a layer, and what an innermost module of no known kind does."""
        places = [self._owners.get(id(tensor), ("", ""))[0] for tensor in inputs]
        for place in self._uncalled & set(places):
            operation = recognition.find_operation(name, args, keywords, self._own_by_id[place])
            if operation is not None:
                self._add_operation(operation, inputs[0], results[0])
                return
        path, index = self._open[-1] if self._open else ("", None)
        doings = None if index is None else self._doings.get(index)
        if doings is None:
            return
        operation = recognition.find_operation(name, args, keywords, self._own_by_id[path])
        if operation is not None:
            doings.operations.append((len(self.layers), operation))
            self._add_operation(operation, inputs[0], results[0])
            return
        doings.note_norm(name, args, keywords)
        doings.note(name, recognition.own_tensors(inputs, self._own_by_id[path]))
        order, axes = self._orders.get(inputs[0]), function_names.reduced_axes(name, args, keywords)
        if order is not None and axes is not None:
            doings.reductions.append(recognition.name_axes(order, axes))

    def _add_operation(self, operation: Operation, x: torch.Tensor, result: torch.Tensor) -> None:
        """Add a function with parameters as a layer of its own."""
        after, between = self._describe(self._find_origin(x))
        path = number_call(operation.variables[0].own, [layer.path for layer in self.layers])
        orders = [self._orders.get(tensor) for tensor in (x, result)]
        shapes = [
            tuple(tensor.shape[axis] for axis in order.axes()) if order else tuple(tensor.shape)
            for tensor, order in zip((x, result), orders, strict=True)
        ]
        functions = frozenset[int]() if operation.is_whole else self._add_functions("add")
        self._set(result, _Origin(frozenset([len(self.layers)]), functions))
        layouts = [
            Layout(order.axes(), order.features() if len(order.shape) == 2 else ()) if order else Layout()
            for order in orders
        ]
        self.layers.append(
            Layer(
                path=path,
                role=operation.role,
                variables=operation.variables if "#" not in path else (),
                settings=operation.settings,
                input=shapes[0],
                output=shapes[1],
                after=after,
                between=between,
                input_layout=layouts[0],
                output_layout=layouts[1],
                is_module=False,
                is_recorded=operation.is_whole,
            )
        )

    def _note_call(
        self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], results: list[torch.Tensor]
    ) -> None:
        name = function_names.plain_name(func)
        if name in function_names.CONSTANTS:
            return
        data = inputs[:1] if name.endswith("_as") else inputs  # the other input gives its shape alone
        origin = reduce(or_, map(self._find_origin, data))
        if not origin.layers:
            return  # the inputs are constants and parameters
        if name == "scaled_dot_product_attention":
            origin |= _Origin(functions=self._add_functions(*function_names.attention_names(args, kwargs)))
        elif (word := function_names.shared_name(func, args, kwargs, results[0])) is not None:
            origin |= _Origin(functions=self._add_functions(word))
            self._applied[origin.layers].append(word)
        for tensor in results:
            self._set(tensor, origin)

    def _follow_sources(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Note which variables meet data in a function, or which ones are behind its results."""
        sources = [self._sources.get(id(tensor), frozenset(self._own_name(tensor))) for tensor in inputs]
        if any(self._find_origin(tensor).layers for tensor in inputs):
            for name in (name for names in sources for name in names):
                self._joined.setdefault(name, 1 + len(self._joined))
        elif any(sources):
            for tensor in results:
                self._tensors.append(tensor)
                self._sources[id(tensor)] = frozenset[str]().union(*sources)

    def _own_name(self, tensor: torch.Tensor) -> tuple[str, ...]:
        return tuple(filter(None, self._owners.get(id(tensor), ("", ""))[1:]))

    def _note_use(self, tensor: torch.Tensor) -> None:
        path, name = self._owners.get(id(tensor), ("", ""))
        if name:
            self._seen.setdefault(name, len(self._seen))
            if path not in [place for place, _ in self._open]:
                self._elsewhere.add(name)

    def _refuse_random(self, func: Any, args: Any, kwargs: Any) -> None:
        name = function_names.plain_name(func)
        if "dropout" in name:
            rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            if rate and kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True)):
                raise Refused(
                    f"{self._reference}: {self.place} calls torch.nn.functional.{name} with p={rate}, which samestep "
                    "cannot switch off; allowed: the module torch.nn.Dropout, or p=0 from an argument of the factory"
                )
        if name in _RANDOM or kwargs.get("dropout_p"):
            raise Refused(
                f"{self._reference}: {self.place} draws random numbers in training ({name}), which two frameworks "
                "cannot share; allowed: rate 0 by an argument of the factory, or the numbers as an input of the model"
            )

    def _before(self, path: str) -> Any:
        owners = {self._owners[id(tensor)][0] for _, tensor, _ in tensors(self._model.get_submodule(path))}
        is_layer = path in self._own or bool(owners)
        is_tied = path not in self._own and len(owners) == 1 and self._is_other_kind(path, *owners)
        is_layer = is_layer and not is_tied  # a decoder with the weight of an embedding is a function in flax

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            with torch._C.DisableTorchFunction():
                is_attention = isinstance(module, nn.MultiheadAttention)
                self._open.append((path, len(self.layers) if is_layer and not is_attention else None))
                if is_attention:
                    self._attended.append(attention.find_inputs(args, kwargs))
                elif is_layer:
                    if roles.role(module) == "parameters" or has_own_forward(module):
                        self._doings[len(self.layers)] = Doings()
                    self.layers.append(self._layer(module, path, _tensors_in((args, kwargs))))

        return hook

    def _is_other_kind(self, path: str, owner: str) -> bool:
        """Tell whether two modules are layers of different kinds."""
        return len({roles.role(self._model.get_submodule(each)) for each in (path, owner)}) > 1

    def _layer(self, module: nn.Module, path: str, inputs: list[torch.Tensor]) -> Layer:
        call = number_call(path or roles.ROOT, [layer.path for layer in self.layers])
        after, between = self._describe(reduce(or_, map(self._find_origin, inputs), _Origin()))
        role = roles.role(module)
        return Layer(
            path=call,
            role=role,
            variables=tuple(self._own.get(path, ())) if "#" not in call else (),
            settings=roles.settings(module),
            input=self._neutral_shape(module, inputs[0]) if inputs else (),
            output=(),
            after=after,
            between=between,
            written=roles.read_as_written(module),
            input_layout=self._find_layout(role, inputs[0]) if inputs else Layout(),
        )

    def _find_layout(self, role: str, tensor: torch.Tensor) -> Layout:
        """Return how a layer's input or output comes into the neutral order. Known kinds of layers tell its axes."""
        order = self._orders.get(tensor)
        if order is None or not order.shape:
            return Layout()
        axes = order.axes()
        has_axes = role == "parameters" or axes[0] != 0  # known kinds of layers have the images on their first axis
        return Layout(axes if has_axes else (), order.features() if len(order.shape) == 2 else ())

    def _neutral_shape(self, module: nn.Module, tensor: torch.Tensor) -> tuple[int, ...]:
        axes = self._find_layout(roles.role(module), tensor).axes
        return tuple(tensor.shape[axis] for axis in axes) if axes else _neutral(module, tensor.shape)

    def _after(self, module: nn.Module, _inputs: Any, result: Any) -> None:
        path, index = self._open.pop()
        if isinstance(module, nn.MultiheadAttention):
            with torch._C.DisableTorchFunction():
                self._add_attention(module, path, result)
            return
        if index is None:
            return
        results = _tensors_in(result)
        if not results:
            what = f"layer {path!r} ({type(module).__name__})" if path else "the model"
            raise Refused(f"{self._reference}: {what} returns a {type(result).__name__} without a tensor")
        with torch._C.DisableTorchFunction():
            origin = self._find_origin(results[0])
            last, until_end = self._describe(origin)
            self.layers[index] = replace(
                self.layers[index],
                output=self._neutral_shape(module, results[0]),
                output_layout=self._find_layout(roles.role(module), results[0]),
                last=last,
                until_end=until_end,
            )
            self._name_doings(index, origin)
            for tensor in results if path and index not in self._dropped else ():  # nothing comes after the whole model
                self._set(tensor, _Origin(frozenset([index])))

    def _add_attention(self, module: nn.MultiheadAttention, path: str, result: Any) -> None:
        """Add the dense layers of torch's own attention."""
        inputs, first = self._attended.pop(), len(self.layers)
        for place, (name, variables) in enumerate(attention.list_variables(module, path)):
            is_last = name == "out"
            origin = self._attend(module, range(first, first + place)) if is_last else None
            after, between = self._describe(origin or self._find_origin(inputs[place]))
            call = number_call(join_path((path, name)), [layer.path for layer in self.layers])
            shape = tuple(result[0].shape) if is_last else tuple(inputs[place].shape)
            self.layers.append(
                Layer(
                    path=call,
                    role="dense",
                    variables=variables if "#" not in call else (),
                    settings={},
                    input=shape,
                    output=tuple(result[0].shape),
                    after=after,
                    between=between,
                    is_module=False,
                    is_recorded=False,
                )
            )
        for tensor in _tensors_in(result):
            self._set(tensor, _Origin(frozenset([len(self.layers) - 1])))

    def _attend(self, module: nn.MultiheadAttention, layers: range) -> _Origin:
        names = "matmul", name_factor(module.head_dim**-0.5), "softmax", "matmul"
        return _Origin(frozenset(layers), self._add_functions(*names))

    def _add_functions(self, *names: str) -> frozenset[int]:
        self._functions += names
        return frozenset(range(len(self._functions) - len(names), len(self._functions)))

    def _name_doings(self, index: int, result: _Origin) -> None:
        """Give a layer of no known kind the role of what it does.

        A module that ends with its only operation with variables is that layer. Otherwise every operation is a
        layer of its own, and the module keeps the rest. A layer of a known kind keeps its role, unless functions such
        as a ReLU follow that operation.
        """
        doings, layer = self._doings.get(index), self.layers[index]
        if doings is None:
            return
        numbers = {number for number, _ in doings.operations}
        others = [each for number, each in enumerate(self.layers) if number > index and number not in numbers]
        layer = replace(layer, inside=len(others))
        own = self._own.get(layer.path.partition("#")[0] if layer.path != roles.ROOT else "", [])
        names = {variable.own for variable in own}
        covered = [{variable.own for variable in operation.variables} == names for _, operation in doings.operations]
        is_known = layer.role != "parameters"
        if is_known and (covered != [True] or not result.functions):
            self._dropped |= numbers
            if covered == [True]:
                operation = self.layers[min(numbers)]
                own = take_padding(replace(operation, between=operation.between[len(layer.between) :]))
                self.layers[index] = replace(layer, settings=own.settings, written={**layer.written, **own.written})
            return
        if covered == [True] and not others and index:
            number, operation = doings.operations[0]
            if not result.functions:
                self._dropped.add(number)
                variables = operation.variables if layer.variables else ()
                self.layers[index] = replace(
                    layer, role=operation.role, settings=operation.settings, variables=variables
                )
                return
        if doings.operations:
            used = {variable.own for _, operation in doings.operations for variable in operation.variables}
            rest = tuple(variable for variable in layer.variables if variable.own not in used)
            self.layers[index] = replace(layer, variables=rest, inside=len(others) + len(numbers), is_module=False)
            if not names - used:
                self._dropped.add(index)
            return
        norm = None if others else doings.find_norm(own, layer.output[-1] if layer.output else 0)
        if norm is not None:
            variables = norm.variables if layer.variables else ()
            self.layers[index] = replace(layer, role=norm.role, settings=norm.settings, variables=variables)
            return
        variables = tuple(replace(each, use=doings.uses.get(each.own, "")) for each in layer.variables)
        self.layers[index] = replace(layer, variables=variables)

    def _describe(self, origin: _Origin) -> tuple[tuple[str, ...], tuple[str, ...]]:
        after = tuple(IMAGES if index < 0 else self.layers[index].path for index in sorted(origin.layers))
        return after, tuple(self._functions[index] for index in sorted(origin.functions))

    def _set(self, tensor: torch.Tensor, origin: _Origin) -> None:
        self._tensors.append(tensor)
        self._origins[id(tensor)] = origin
        if tensor.grad_fn is not None:
            self._nodes[tensor.grad_fn] = origin

    def _find_origin(self, tensor: torch.Tensor) -> _Origin:
        return self._origins.get(id(tensor)) or self._search_graph(tensor)

    def _search_graph(self, tensor: torch.Tensor) -> _Origin:
        """Return the origin of a tensor by autograd's graph.

        Torch does not show the call of a torch.autograd.Function or of TorchScript.
        """
        origin, waiting, visited = _Origin(), [tensor.grad_fn], set[Any]()
        while waiting:
            node = waiting.pop()
            if node in self._nodes:
                origin |= self._nodes[node]
            elif node is not None and node not in visited:
                visited.add(node)
                waiting += [earlier for earlier, _ in node.next_functions]
        return origin


def _variables(model: nn.Module) -> Iterator[tuple[str, Variable, torch.Tensor]]:
    """Yield module, description and tensor of every variable that can cross, each tensor once.

    A variable in a torch.nn.ParameterList or ParameterDict belongs to the module that has the list, and the output
    layer of an attention to the attention, which never calls it.
    """
    visited = set[int]()
    for path, module in model.named_modules():
        holder = model.get_submodule(path.rpartition(".")[0])
        is_list = isinstance(module, (nn.ParameterList, nn.ParameterDict))
        is_list = is_list or (isinstance(holder, nn.MultiheadAttention) and module is holder.out_proj)
        for variable, tensor in weight_norm.list_variables(module, path):
            visited.add(id(tensor))
            yield path, variable, tensor
        for attribute, tensor, is_parameter in tensors(module):
            if id(tensor) not in visited:
                visited.add(id(tensor))
                role, shape, _ = roles.variable(module, roles.role(module), attribute, tensor.shape)
                variable = Variable(join_path((path, attribute)), role, shape, is_parameter)
                yield path.rpartition(".")[0] if is_list else path, variable, tensor


def _neutral(module: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    return neutral_shape(shape) if is_channels_first(module, shape) else tuple(shape)


def _tensors_in(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
