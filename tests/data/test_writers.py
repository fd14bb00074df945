"""The synthetic writers: the same for a seed, different from each other, drawn on demand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.data.writers import NUM_CLASSES, draw_character, draw_writer, writers

few = settings(max_examples=30, deadline=None)


def test_writers_are_the_same_for_a_seed_and_others_for_another() -> None:
    a, b, other = (writers(seed, 5, examples=8, held_out=2) for seed in (3, 3, 4))
    for client in range(5):
        for x, y in zip(a.examples(client), b.examples(client), strict=True):
            assert torch.equal(x, y)
        assert not torch.equal(a.examples(client)[0], other.examples(client)[0])
    assert torch.equal(a.test.inputs, b.test.inputs)
    assert not torch.equal(a.test.inputs, other.test.inputs)


def test_writers_do_not_touch_the_global_generator_nor_depend_on_it() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = writers(3, 3, examples=4, held_out=1).examples(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(writers(3, 3, examples=4, held_out=1).examples(1)[0], first[0])


@few
@given(st.integers(0, 2**62), st.integers(0, 10**6), st.integers(1, 12))
def test_images_are_of_the_papers_shape_between_0_and_1(seed: int, client: int, count: int) -> None:
    images, labels = draw_writer(seed, client, count, "train", 0.5)
    assert images.shape == (count, 1, 28, 28)
    assert images.dtype == torch.float32
    assert labels.shape == (count,)
    assert labels.dtype == torch.int64
    assert bool(((images >= 0) & (images <= 1)).all())
    assert bool(((labels >= 0) & (labels < 62)).all())
    assert bool((images.amax((1, 2, 3)) > 0.3).all()), "a blank page"


def test_there_are_62_characters_and_all_are_written() -> None:
    assert NUM_CLASSES == 62
    data = writers(0, 60, examples=30, held_out=1)
    seen = torch.cat([data.examples(client)[1] for client in range(60)])
    assert len(seen.unique()) == 62


def test_characters_differ_from_each_other() -> None:
    clean = [
        draw_character(torch.full((40,), label), 5, torch.Generator().manual_seed(label)).mean(0)
        for label in range(62)
    ]
    means = torch.stack(clean).reshape(62, -1)
    apart = torch.cdist(means, means) + 100 * torch.eye(62)
    assert float(apart.min()) > 0.8


def test_every_writer_has_a_hand_of_its_own() -> None:
    """The mean picture of a character differs more between writers than between two batches."""
    labels = torch.full((60,), 10)

    def mean(hand: int, seed: int) -> torch.Tensor:
        return draw_character(labels, hand, torch.Generator().manual_seed(seed)).mean(0)

    same = [float((mean(h, 1) - mean(h, 2)).norm()) for h in range(6)]
    different = [float((mean(h, 1) - mean(g, 2)).norm()) for h in range(6) for g in range(h)]
    assert min(different) > max(same)
    assert sum(different) / len(different) > 2 * sum(same) / len(same)


def test_writers_differ_in_the_characters_they_choose() -> None:
    def shares(skew: float) -> torch.Tensor:
        return torch.stack(
            [
                torch.bincount(draw_writer(1, c, 150, "train", skew)[1], minlength=62) / 150
                for c in range(6)
            ]
        )

    away = (shares(0.5) - 1 / 62).abs().sum(
        1
    ) / 2  # total variation; 150 even draws give about 0.25
    assert float(away.min()) > 0.35
    assert float((shares(1000.0) - 1 / 62).abs().sum(1).max()) / 2 < 0.35
    taste = shares(0.5)
    assert (
        min(float((taste[i] - taste[j]).abs().sum()) / 2 for i in range(6) for j in range(i)) > 0.35
    )


def test_a_writer_keeps_hand_and_taste_in_the_test_but_not_the_pictures() -> None:
    train, test = draw_writer(2, 9, 400, "train", 0.1), draw_writer(2, 9, 400, "test", 0.1)
    assert not torch.equal(train[0], test[0])
    a, b = (torch.bincount(labels, minlength=62) / 400 for labels in (train[1], test[1]))
    assert float((a - b).abs().sum()) / 2 < 0.2
    stranger = torch.bincount(draw_writer(2, 10, 400, "test", 0.1)[1], minlength=62) / 400
    assert float((a - stranger).abs().sum()) / 2 > 0.4


def test_the_test_set_holds_out_examples_of_each_writer_and_says_whose() -> None:
    data = writers(5, 7, examples=4, held_out=3)
    assert data.test.owners.tolist() == [c for c in range(7) for _ in range(3)]
    for client in range(7):
        images, labels = draw_writer(5, client, 3, "test", 0.5)
        mine = data.test.owners == client
        assert torch.equal(data.test.inputs[mine], images)
        assert torch.equal(data.test.targets[mine], labels)


def test_of_a_large_population_200_writers_are_tested_and_nobody_is_drawn_before_he_is_asked() -> (
    None
):
    data = writers(5, 10**6, examples=4, held_out=1)
    owners = data.test.owners.tolist()
    assert len(owners) == 200 == len(set(owners))
    assert all(0 <= owner < 10**6 for owner in owners)
    assert max(owners) > 5 * 10**5, "only the first writers are tested"
    assert data.examples(999_999)[0].shape == (4, 1, 28, 28)
    assert data.examples.cache_info().currsize == 1


@pytest.mark.parametrize("wrong", [{"num_clients": 0}, {"examples": 0}, {"held_out": 0}])
def test_a_population_of_nothing_is_refused_by_name(wrong: dict[str, int]) -> None:
    (name, value) = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        writers(0, **wrong)
