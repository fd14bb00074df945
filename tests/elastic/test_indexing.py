"""Slices by index: views where strides can express them, and the same elements in any case."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fjord.elastic.indexing import (
    put_slice,
    relative_indices,
    sliced_shape,
    strided_view,
    take_slice,
)

SHAPE = (6, 5, 4)


@st.composite
def axis_indices(draw):
    indices = []
    for size in SHAPE:
        kept = draw(st.none() | st.sets(st.integers(0, size - 1), min_size=1))
        indices.append(None if kept is None else torch.tensor(sorted(kept)))
    return indices


def literal_slice(tensor, indices):
    for axis, index in enumerate(indices):
        if index is not None:
            rows = tensor.unbind(axis)
            tensor = torch.stack([rows[i] for i in index.tolist()], axis)
    return tensor


@given(axis_indices())
def test_a_slice_has_the_elements_of_its_indices(indices):
    tensor = torch.arange(120).reshape(SHAPE)
    expected = literal_slice(tensor, indices)
    assert torch.equal(take_slice(tensor, indices), expected)
    assert sliced_shape(SHAPE, indices) == list(expected.shape)
    view = strided_view(tensor, indices)
    if view is not None:
        assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        assert torch.equal(view.reshape(expected.shape), expected)


@given(axis_indices())
def test_what_is_put_back_changes_the_slice_and_nothing_else(indices):
    tensor = torch.zeros(SHAPE)
    put_slice(tensor, indices, torch.ones(sliced_shape(SHAPE, indices)))
    assert bool((literal_slice(tensor, indices) == 1).all())
    assert int(tensor.sum()) == literal_slice(tensor, indices).numel()


@given(axis_indices(), st.data())
def test_relative_indices_find_a_slice_inside_a_larger_one(outer, data):
    inner = []
    for size, index in zip(SHAPE, outer, strict=True):
        stored = list(range(size)) if index is None else index.tolist()
        kept = data.draw(st.sets(st.sampled_from(stored), min_size=1))
        inner.append(torch.tensor(sorted(kept)))
    tensor = torch.arange(120).reshape(SHAPE)
    inside = take_slice(take_slice(tensor, outer), relative_indices(inner, outer))
    assert torch.equal(inside, take_slice(tensor, inner))


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        ([0, 1, 2], (3,)),
        ([4], (1,)),
        ([0, 1, 4, 5, 8, 9], (3, 2)),
        ([0, 2, 4], (3, 1)),
        ([0, 1, 4], None),
        ([0, 1, 4, 5, 9, 10], None),
    ],
)
def test_strides_express_runs_of_equal_length_and_distance(index, shape):
    view = strided_view(torch.arange(12), [torch.tensor(index)])
    assert (None if view is None else tuple(view.shape)) == shape
