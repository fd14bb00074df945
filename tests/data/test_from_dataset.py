"""Any torch dataset as a federated dataset."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.data.from_dataset import partition_dataset

few = settings(max_examples=30, deadline=None)


def doubled(inputs: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    noise = 0 if generator is None else torch.rand(len(inputs), 1, generator=generator)
    return inputs.float() * 2 + noise


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
