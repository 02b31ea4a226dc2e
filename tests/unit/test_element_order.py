"""The order of elements: what moves with the data, what is brought into neutral order, and what is the model's own."""

import numpy as np
import pytest

from compare.base.element_order import Bindings, ElementOrder, image_order, join, own_order, resized_order


def flattened(channels: int = 3, height: int = 2, width: int = 4) -> ElementOrder:
    order = image_order((2, channels, height, width), 1)
    return order.moved(order.places.reshape(2, -1))


def test_a_flattened_image_is_brought_into_the_order_height_width_channels() -> None:
    images = np.arange(2 * 3 * 2 * 4).reshape(2, 3, 2, 4)
    rows = images.reshape(2, -1)[:, list(flattened().features())]
    np.testing.assert_array_equal(rows, images.transpose(0, 2, 3, 1).reshape(2, -1))


@pytest.mark.parametrize("shape", [(2, 5, 5, 5), (2, 8, 8, 8), (2, 5, 3, 4)])
def test_axes_come_from_the_data_and_not_from_their_sizes(shape: tuple[int, ...]) -> None:
    assert image_order(shape, 1).axes() == (0, 2, 3, 1)
    assert own_order(shape).axes() == (0, 1, 2, 3)
    order = image_order(shape, 1)
    assert order.moved(order.places.transpose(0, 2, 3, 1)).axes() == (0, 1, 2, 3)


def test_axes_of_one_element_come_first_on_both_sides() -> None:
    assert image_order((2, 6, 1, 1), 1).axes() == (0, 2, 3, 1)
    assert own_order((2, 1, 1, 6)).axes() == (0, 1, 2, 3)


def test_shuffled_channels_and_turned_images_stay_as_the_model_has_them() -> None:
    order = image_order((2, 6, 2, 3), 1)
    shuffled = order.places.reshape(2, 2, 3, 2, 3).swapaxes(1, 2).reshape(2, -1)
    assert order.moved(shuffled).features() == ()
    turned = order.places.swapaxes(2, 3).reshape(2, -1)
    assert order.moved(turned).features() == ()


def test_a_mean_of_images_leaves_their_channels_in_order() -> None:
    order = image_order((2, 6, 2, 3), 1)
    reduced = order.reduced(order.places.min(axis=(2, 3)))
    assert (reduced.channels, reduced.features()) == (6, ())


def test_joined_rows_keep_the_order_of_each_part() -> None:
    part = flattened()
    joined = join([(part, (2, 24)), (None, (2, 5)), (own_order((2, 3)), (2, 3))], 1)
    assert joined is not None
    assert joined.features() == (*part.features(), *range(24, 32))


def test_other_lengths_keep_the_axes() -> None:
    assert resized_order(image_order((2, 3, 8, 8), 1), (2, 5, 4, 4)).axes() == (0, 2, 3, 1)


def test_outputs_that_become_an_image_get_its_order_in_the_next_trace() -> None:
    first = Bindings()
    made = first.make(0, (2, 12), None)
    first.bind_image(made.moved(made.places.reshape(2, 3, 2, 2)), 1)
    order, channels = first.new[0]
    assert (order, channels) == ((0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11), 3)
    second = Bindings(first.new)
    assert second.make(0, (2, 12), None).features() == order
    assert second.outputs(0) == order


def test_outputs_that_gate_a_flattened_image_get_its_order() -> None:
    bindings, image = Bindings(), flattened()
    assert bindings.choose([bindings.make(3, (2, 24), image), image]) is image
    assert bindings.new[3][0] == image.features()


def test_outputs_of_use_in_their_own_order_are_not_bound() -> None:
    bindings = Bindings()
    made = bindings.make(0, (2, 12), None)
    bindings.bind_image(made.moved(made.places.reshape(2, 2, 2, 3)), -1)
    bindings.choose([made, own_order((2, 12))])
    assert bindings.new == {}
