"""The cut into clients: nobody is left out, skew is as asked for, and what cannot be is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.data.partitioners import assign_by_name, partition_labels


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["iid", "dirichlet-5", "shards-1", "shards-3"]),
    st.integers(1, 6),
    st.integers(60, 90),
    st.integers(0, 5),
)
def test_every_example_has_a_client_and_every_client_an_example(
    how: str, clients: int, size: int, seed: int
) -> None:
    labels = torch.randint(4, (size,), generator=torch.Generator().manual_seed(seed))
    found = partition_labels(labels, how, clients, seed)
    counts = torch.bincount(found, minlength=clients)
    assert found.min() >= 0
    assert len(counts) == clients
    assert counts.min() >= 1
    assert torch.equal(found, partition_labels(labels, how, clients, seed))
    if how == "iid":
        assert counts.max() - counts.min() <= 1


def test_shards_give_a_client_few_labels_and_leave_nothing_over() -> None:
    labels = torch.arange(1003) % 10
    found = partition_labels(labels, "shards-2", 50, 0)
    assert all(len(labels[found == client].unique()) <= 4 for client in range(50))
    assert torch.bincount(found).sum() == 1003


def test_a_smaller_dirichlet_number_skews_more() -> None:
    labels = torch.arange(5000) % 10
    spread = []
    for how in ("iid", "dirichlet-10", "dirichlet-0.3"):
        clients = partition_labels(labels, how, 10, 0)[labels == 0]
        spread.append(clients.bincount(minlength=10).float().std())
    assert spread[0] < spread[1] < spread[2]


@pytest.mark.parametrize(
    "how",
    ["", "random", "dirichlet", "dirichlet-0", "dirichlet--1", "shards-0", "shards-1.5", "iid-2"],
)
def test_an_unknown_partition_is_refused_with_what_is_allowed(how: str) -> None:
    with pytest.raises(
        ValueError, match=r"partition=.* is not one of: iid, dirichlet-A .*, shards-N"
    ):
        partition_labels(torch.arange(10) % 2, how, 2, 0)


@pytest.mark.parametrize(
    ("how", "clients", "named"),
    [
        ("iid", 0, "num_clients=0 must be from 1 to 20"),
        ("iid", 21, "num_clients=21 must be from 1 to 20"),
        ("shards-5", 5, "5 clients need more shards than the 20 examples"),
        ("dirichlet-0.001", 15, "num_clients=15: not every client gets an example"),
    ],
)
def test_a_partition_with_an_empty_client_is_refused(how: str, clients: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        partition_labels(torch.arange(20) % 2, how, clients, 0)


def test_names_are_numbered_in_their_order(capsys: pytest.CaptureFixture) -> None:
    clients, names = assign_by_name(["b", "a", "c", "a"])
    assert (clients.tolist(), names) == ([1, 0, 2, 0], ["a", "b", "c"])
    assert capsys.readouterr().err == ""
