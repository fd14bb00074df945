"""Named seeds, and the random order of a range that is computed item by item."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.core.seeding import ShuffledRange, derive_seed


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.integers(0, 2**63 - 1))
def test_a_shuffled_range_is_a_permutation(size: int, seed: int) -> None:
    order = ShuffledRange(size, seed)
    assert len(order) == size
    assert sorted(order) == list(range(size))
    assert [order[i] for i in range(size)] == list(order) == list(ShuffledRange(size, seed))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2**62), st.integers(0, 2**63 - 1), st.data())
def test_places_of_a_huge_shuffled_range_are_distinct_and_inside(
    size: int, seed: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=20))
    order = ShuffledRange(size, seed)
    items = [order[p] for p in places]
    assert len(set(items)) == len(items)
    assert all(0 <= item < size for item in items)
    for outside in (-1, size):
        with pytest.raises(IndexError):
            order[outside]


@pytest.mark.parametrize("size", [2, 3, 5, 10, 17])
def test_every_item_comes_to_every_place_about_equally_often(size: int) -> None:
    trials = 800
    times = [[0] * size for _ in range(size)]
    for seed in range(trials):
        for place, item in enumerate(ShuffledRange(size, derive_seed(seed, "order"))):
            times[place][item] += 1
    expected = trials / size
    assert all(abs(n - expected) < 6 * expected**0.5 for row in times for n in row), times


def test_seeds_differ_by_every_part_of_their_path() -> None:
    paths = [
        (7,),
        (7, "a"),
        (7, "b"),
        (7, "a", 1),
        (7, "a", 2),
        (7, "a", "1"),
        (8, "a"),
        (7, "a", 1, 2),
        (7, "a", 12),
    ]
    seeds = {derive_seed(*path) for path in paths}
    assert len(seeds) == len(paths)
    assert all(0 <= seed < 2**63 for seed in seeds)
