"""Federated data: partitions of tensors, clients made on demand, and the writers of the demo."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.data.federated import GeneratedData, TestSet, partition_tensors
from fjord.data.from_dataset import partition_dataset
from fjord.data.writers import NUM_CLASSES, draw_character, draw_writer, synthetic_writers

few = settings(max_examples=30, deadline=None)


def batch(count: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(start, start + count)[:, None] * 1.0, torch.arange(start, start + count)


# --------------------------------------------------------------------------------------- partitions


@few
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=40).filter(
        lambda c: set(c) == set(range(max(c) + 1))
    )
)
def test_a_partition_gives_every_client_its_own_examples_in_order(clients: list[int]) -> None:
    data = partition_tensors(batch(len(clients)), torch.tensor(clients), batch(3))
    assert data.num_clients == max(clients) + 1
    for client in range(data.num_clients):
        inputs, targets = data.examples(client)
        mine = [i for i, c in enumerate(clients) if c == client]
        assert targets.tolist() == mine
        assert inputs[:, 0].tolist() == [float(i) for i in mine]
    assert data.test.owners.tolist() == [-1, -1, -1]


def test_a_partition_knows_whose_test_examples_are() -> None:
    data = partition_tensors(
        batch(4), torch.tensor([0, 1, 1, 0]), batch(3), torch.tensor([1, 0, 1])
    )
    assert data.test.owners.tolist() == [1, 0, 1]
    assert data.test.targets.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("clients", "named"),
    [
        ([0, 1, 1], "4 inputs, 4 targets and 3 client numbers"),
        ([0, 2, 2, 0], "client 1 has no examples"),
        ([1, 1, 2, 2], "client 0 has no examples"),
        ([0, 0, -1, 1], "client"),
        ([0.0, 1.0, 0.0, 1.0], "client"),
        ([[0, 1], [0, 1], [1, 0], [1, 1]], "client"),
    ],
)
def test_client_numbers_that_do_not_fit_are_refused_in_words(clients: list, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        partition_tensors(batch(4), torch.tensor(clients), batch(3))


def test_inputs_and_targets_must_go_together() -> None:
    with pytest.raises(ValueError, match="4 inputs, 3 targets"):
        partition_tensors((batch(4)[0], batch(3)[1]), torch.tensor([0, 0, 1, 1]), batch(3))


def test_no_examples_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="client 0 has no examples"):
        partition_tensors(batch(0), torch.zeros(0, dtype=torch.int64), batch(3))


def test_a_test_set_must_fit_together_and_hold_something() -> None:
    with pytest.raises(ValueError, match="3 inputs, 3 targets and 2 owners"):
        partition_tensors(batch(2), torch.tensor([0, 1]), batch(3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="no example"):
        TestSet(torch.zeros(0, 2), torch.zeros(0), torch.zeros(0))


@pytest.mark.parametrize("owner", [2, 99, -2])
def test_a_test_example_of_a_client_that_does_not_exist_is_refused_at_the_door(owner: int) -> None:
    """Or else the run fails at its very end, when clients are scored."""
    with pytest.raises(ValueError, match=str(owner)):
        partition_tensors(
            batch(4), torch.tensor([0, 1, 1, 0]), batch(3), torch.tensor([0, owner, 1])
        )


# ----------------------------------------------------------------------------------- made on demand


def test_generated_clients_are_made_when_asked_for_and_the_latest_remembered() -> None:
    made = []

    def make(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        made.append(client)
        return batch(2, client)

    data = GeneratedData(10**9, make, TestSet(*batch(1), torch.tensor([-1])), cache_size=2)
    assert made == []
    assert data.num_clients == 10**9
    assert data.examples(7)[1].tolist() == [7, 8]
    data.examples(7)
    data.examples(999_999_999)
    assert made == [7, 999_999_999]
    data.examples(3)
    data.examples(7)
    assert made == [7, 999_999_999, 3, 7]


# ------------------------------------------------------------------------------------------ writers


def test_writers_are_the_same_for_a_seed_and_others_for_another() -> None:
    a, b, other = (synthetic_writers(seed, 5, examples=8, held_out=2) for seed in (3, 3, 4))
    for client in range(5):
        for x, y in zip(a.examples(client), b.examples(client), strict=True):
            assert torch.equal(x, y)
        assert not torch.equal(a.examples(client)[0], other.examples(client)[0])
    assert torch.equal(a.test.inputs, b.test.inputs)
    assert not torch.equal(a.test.inputs, other.test.inputs)


def test_writers_do_not_touch_the_global_generator_nor_depend_on_it() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = synthetic_writers(3, 3, examples=4, held_out=1).examples(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(synthetic_writers(3, 3, examples=4, held_out=1).examples(1)[0], first[0])


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
    data = synthetic_writers(0, 60, examples=30, held_out=1)
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
    """The mean picture of a character differs between writers by far more than between two batches of one."""
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
    data = synthetic_writers(5, 7, examples=4, held_out=3)
    assert data.test.owners.tolist() == [c for c in range(7) for _ in range(3)]
    for client in range(7):
        images, labels = draw_writer(5, client, 3, "test", 0.5)
        mine = data.test.owners == client
        assert torch.equal(data.test.inputs[mine], images)
        assert torch.equal(data.test.targets[mine], labels)


def test_of_a_large_population_200_writers_are_tested_and_nobody_is_drawn_before_he_is_asked() -> (
    None
):
    data = synthetic_writers(5, 10**6, examples=4, held_out=1)
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
        synthetic_writers(0, **wrong)


# --------------------------------------------------------------------- stored one way, seen another


def doubled(inputs: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    noise = 0 if generator is None else torch.rand(len(inputs), 1, generator=generator)
    return inputs.float() * 2 + noise


def test_bytes_are_stored_and_whole_numbers_seen() -> None:
    stored = torch.arange(4, dtype=torch.uint8)
    data = partition_tensors(
        (stored[:, None], stored),
        torch.tensor([0, 1, 1, 0]),
        (stored[:, None], stored),
        prepare=doubled,
    )
    inputs, targets = data.examples(0)
    assert (inputs.dtype, targets.dtype, targets.tolist()) == (torch.uint8, torch.int64, [0, 3])
    seen, wanted = data.test.batch(1, 3)
    assert (seen.tolist(), wanted.dtype, wanted.tolist()) == ([[2.0], [4.0]], torch.int64, [1, 2])
    assert [t.tolist() for t in data.all_examples()] == [stored[:, None].tolist(), stored.tolist()]


# -------------------------------------------------------------------------------- any torch dataset


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), float(row)), row * row % 7


@few
@given(
    st.lists(st.sampled_from(["ann", "bob", "cyd", ("a", 1)]), min_size=30, max_size=30),
    st.integers(0, 5),
)
def test_every_example_of_a_dataset_is_its_clients_or_held_out_from_it(
    names: list, seed: int
) -> None:
    data = partition_dataset(Squares(), names, seed=seed)
    order = list(dict.fromkeys(names))
    assert data.num_clients == len(order)
    seen = []
    for client, name in enumerate(order):
        inputs, targets = data.examples(client)
        held = data.test.inputs[data.test.owners == client]
        rows = [*inputs[:, 0, 0].int().tolist(), *held[:, 0, 0].int().tolist()]
        assert sorted(rows) == [i for i, n in enumerate(names) if n == name]
        assert targets.tolist() == [i * i % 7 for i in rows[: len(targets)]]
        assert len(held) == (0 if len(rows) == 1 else max(1, len(rows) // 10))
        seen += rows
    assert sorted(seen) == list(range(30))


def test_a_test_dataset_of_its_own_is_taken_whole() -> None:
    data = partition_dataset(Squares(), torch.arange(30) % 3, test=Squares(), prepare=doubled)
    assert [len(data.examples(i)[0]) for i in range(3)] == [10, 10, 10]
    assert data.test.batch(29, 30)[0].unique().tolist() == [58.0]
    assert set(data.test.owners.tolist()) == {-1}


class Odd(Squares):
    def __getitem__(self, row: int) -> object:
        return {3: "text", 5: (torch.ones(9), 1), 7: (object(), 1)}.get(
            row, super().__getitem__(row)
        )


@pytest.mark.parametrize(
    ("dataset", "clients", "options", "named"),
    [
        (iter([]), [], {}, "no length"),
        (Squares(), [0] * 29, {}, "29 clients for 30 examples"),
        ([], [], {}, "no example"),
        (Squares(), range(30), {}, "give a test dataset"),
        (Squares(), [0] * 30, {"test_share": "2"}, "test_share=2"),
        (Squares(), [0] * 30, {"test": []}, "test: there is no example"),
        (Odd(), [0] * 30, {"test": Squares()}, "example 3 is not an"),
        (Odd(), [0] * 4 + [1] * 3 + [0] * 23, {"test": Squares()}, "example 5 has the shape"),
        (Odd(), [0] * 7 + [1] * 23, {"test": Squares()}, "example 7 is not an"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused_in_words(
    dataset: object, clients: list, options: dict, named: str
):
    def all_read() -> None:
        data = partition_dataset(dataset, clients, **options)
        for client in reversed(range(data.num_clients)):
            data.examples(client)

    with pytest.raises(ValueError, match=named):
        all_read()


@pytest.mark.parametrize(
    "clients", [[[1], [2]] * 15, torch.zeros(30, 2), 3, [float("nan")] * 30, [{}] * 30]
)
def test_clients_that_cannot_be_told_apart_are_refused_in_words(clients: object) -> None:
    with pytest.raises(ValueError, match="clients: "):
        partition_dataset(Squares(), clients)


class Restless(Squares):
    """Transforms of all kinds: torch's, NumPy's and Python's chance, and a network's output."""

    def __getitem__(self, row: int) -> tuple[torch.Tensor, np.ndarray]:
        noise = torch.rand(1) + random.random() + float(np.random.random())  # noqa: NPY002
        return torch.ones(2, requires_grad=True) * noise, np.array(row % 3, dtype=np.uint16)


def test_a_client_is_read_the_same_way_whoever_was_read_before() -> None:
    def read(client: int) -> torch.Tensor:
        torch.manual_seed(client)
        return partition_dataset(
            Restless(), [i % 5 for i in range(30)], test=Squares(), cache_size=0
        ).examples(client)[0]

    first = [read(client) for client in range(5)]
    state = random.getstate()
    again = [read(client) for client in reversed(range(5))]
    assert random.getstate() == state
    assert all(torch.equal(a, b) for a, b in zip(first, reversed(again), strict=True))
    inputs, targets = partition_dataset(Restless(), [0] * 30, test=Squares()).examples(0)
    assert (inputs.requires_grad, targets.dtype) == (False, torch.int64)
