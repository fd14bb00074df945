"""Federated data: partitions of tensors, clients made on demand, and the writers of the demo."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.data.federated import GeneratedData, TestSet, partition_tensors

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
