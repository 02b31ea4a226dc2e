"""Where each element of a tensor belongs in the neutral order: positions first, channels last.

A trace carries these numbers along with the data. Functions that move elements move the numbers too. So a flattened
image keeps its order until a layer undoes it. Only the nesting of channels and positions may differ between two
frameworks. Any other order, such as shuffled channels, belongs to the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


Made = tuple[tuple[int, ...], int | None]
"""The indices of outputs in neutral order, and the channels of the image that they become."""


@dataclass(frozen=True)
class ElementOrder:
    """The places of a tensor's elements.

    Attributes:
        places: for each element its place in the neutral order; no two are equal.
        channels: the number of channels of the image that the elements are from. None: nothing checks them any more.
        maker: the number of the dense layer whose outputs these are, while nothing has fixed their order.
    """

    places: Numbers
    channels: int | None
    maker: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.places.shape

    def moved(self, places: Numbers) -> "ElementOrder":
        """Return the order of a tensor with the same elements, or some of them, in other places."""
        return replace(self, places=places)

    def reduced(self, places: Numbers) -> "ElementOrder":
        """Return the order after a reduction. `places` are the least places of each group that becomes one element."""
        channels = None if self.channels is None else max(1, len(np.unique(places % self.channels)))
        return ElementOrder(_rank(places), channels, self.maker)

    def features(self) -> tuple[int, ...]:
        """Return the indices of the last axis in neutral order. Empty: they are in it, or the order is the model's."""
        rows = self.places.reshape(-1, self.shape[-1]) if self.places.ndim else self.places.reshape(1, 1)
        first, last = rows[0], rows[-1]
        chosen = np.argsort(first, kind="stable")
        is_neutral = bool((np.diff(first) > 0).all())
        if is_neutral or not self._is_nested(first) or not np.array_equal(chosen, np.argsort(last, kind="stable")):
            return ()
        return tuple(map(int, chosen))

    def axes(self) -> tuple[int, ...]:
        """Return the tensor's axes in neutral order, those of length 1 behind the batch.

        They stay as they are if no order of the axes is neutral.
        """
        return self._axes

    @cached_property
    def _axes(self) -> tuple[int, ...]:
        places, rest = self.places, range(1, self.places.ndim)
        if not places.size:
            return tuple(range(places.ndim))
        origin = places[(0,) * places.ndim]
        steps = {
            axis: int(places[tuple(int(other == axis) for other in range(places.ndim))] - origin)
            for axis in rest
            if places.shape[axis] > 1
        }
        order = (0, *(axis for axis in rest if axis not in steps), *sorted(steps, key=lambda axis: -steps[axis]))
        if _ascends(places.transpose(order)):
            return order
        # The batch may be another axis, as in attention on rows [L, N, C].
        longest = sorted(steps, key=lambda axis: -steps[axis])[:1]
        others = [axis for axis in range(places.ndim) if axis not in longest]
        turned = (*longest, *others)
        return turned if _ascends(places.transpose(turned)) else tuple(range(places.ndim))

    def _is_nested(self, row: Numbers) -> bool:
        """Tell whether a row differs from the neutral order only in the nesting of channels and positions."""
        if self.channels is None:
            return True
        channel, position = row % self.channels, row // self.channels
        return _ascends_within(channel, position) and _ascends_within(position, channel)


def _ascends(places: Numbers) -> bool:
    return bool((np.diff(places.ravel()) > 0).all())


@dataclass
class Bindings:
    """The orders of dense layers' outputs that later functions have fixed, by the layer's number.

    A model is traced again with the new ones until there is none.

    Attributes:
        known: the indices of a layer's outputs in neutral order, and the channels of the image that they become.
        new: those that this trace has found.
    """

    known: dict[int, Made] = field(default_factory=dict[int, Made])
    new: dict[int, Made] = field(default_factory=dict[int, Made])

    def make(self, maker: int, shape: Sequence[int], before: ElementOrder | None) -> ElementOrder:
        """Return the order of a dense layer's output, with its features on the last axis. `before` is its input's."""
        size, places = shape[-1], np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        if before is not None and before.shape[:-1] == tuple(shape[:-1]):
            places = _rank(before.places.min(axis=-1))[..., None] * size + np.arange(size)
        if maker not in self.known:
            return ElementOrder(places, size, maker if len(shape) == 2 else None)
        order, channels = self.known[maker]
        inverse = np.argsort(np.asarray(order))
        return ElementOrder(places - places % size + inverse, channels)

    def outputs(self, maker: int) -> tuple[int, ...]:
        """Return the indices of a dense layer's outputs in neutral order, or nothing if they are in it."""
        return self.known.get(maker, ((), None))[0]

    def bind_image(self, order: ElementOrder | None, channel_axis: int) -> None:
        """Fix a dense layer's outputs by their use as images with channels on this axis."""
        if order is None or order.maker is None:
            return
        wanted = image_order(order.shape, channel_axis)
        self._bind(order, wanted)

    def _bind_alike(self, order: ElementOrder, other: ElementOrder) -> None:
        """Fix a dense layer's outputs by their use with another tensor, element by element."""
        if order.maker is None or order.shape != other.shape:
            return
        if other.maker is None and len(other.shape) == 2:
            self._bind(order, other)

    def choose(self, alike: Sequence[ElementOrder]) -> ElementOrder:
        """Return the order of tensors of one shape that meet element by element, and fix those that are not known."""
        for order in alike:
            for other in alike:
                if order is not other:
                    self._bind_alike(order, other)
        return next((order for order in alike if order.maker is None), alike[0])

    def _bind(self, order: ElementOrder, wanted: ElementOrder) -> None:
        own, places = order.places[0].ravel(), wanted.places[0].ravel()
        chosen = np.argsort(places, kind="stable")
        checked = ElementOrder(places[np.argsort(own)][None], wanted.channels)
        if own.size and set(own.tolist()) == set(range(own.size)) and checked.features() and order.maker is not None:
            self.new.setdefault(order.maker, (tuple(map(int, own[chosen])), wanted.channels))


def image_order(shape: Sequence[int], channel_axis: int) -> ElementOrder:
    """Return the order of images with the batch on the first axis, channels on the given one and positions between."""
    axis = channel_axis % len(shape)
    rest = [length for other, length in enumerate(shape) if other != axis]
    places = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(*rest, shape[axis])
    return ElementOrder(np.moveaxis(places, -1, axis), shape[axis])


def resized_order(before: ElementOrder, shape: Sequence[int]) -> ElementOrder:
    """Return the order of a tensor whose axes mean what they meant before, with other lengths."""
    axes = before.axes()
    places = np.arange(int(np.prod(shape)), dtype=np.int64).reshape([shape[axis] for axis in axes])
    return ElementOrder(places.transpose(np.argsort(axes)), shape[axes[-1]])


def own_order(shape: Sequence[int]) -> ElementOrder:
    """Return the order of a tensor that is neutral as it is."""
    return image_order(shape, -1)


def join(parts: Sequence[tuple[ElementOrder | None, Sequence[int]]], axis: int) -> ElementOrder | None:
    """Return the order of concatenated tensors, given as their orders and shapes."""
    shape = list(parts[0][1])
    axis %= len(shape)
    shape[axis] = sum(part[axis] for _, part in parts)
    known = [order for order, _ in parts if order is not None]
    if not known:
        return None
    if len(shape) > 2 or axis != 1:
        return resized_order(known[0], shape)
    rows, offset = list[Numbers](), 0
    for order, (_, size) in parts:
        chosen = order.features() if order is not None else ()
        rows.append(offset + (np.argsort(np.asarray(chosen)) if chosen else np.arange(size)))
        offset += size
    places = np.arange(shape[0])[:, None] * offset + np.concatenate(rows)
    return ElementOrder(places.astype(np.int64), None)


def _rank(places: Numbers) -> Numbers:
    return np.argsort(np.argsort(places, axis=None), axis=None).reshape(places.shape).astype(np.int64)


def _ascends_within(groups: Numbers, values: Numbers) -> bool:
    order: Any = np.argsort(groups, kind="stable")
    new_group = np.diff(groups[order]) != 0
    return bool((new_group | (np.diff(values[order]) > 0)).all())
