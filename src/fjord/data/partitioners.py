"""Which client has which example, by the partitioners of `flwr-datasets`."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.data.cache import CachedTensors, load_cached
from fjord.data.sources import import_library

ALLOWED_PARTITIONS = (
    "iid, dirichlet-A with a number A such as dirichlet-0.5, shards-N with N shards for each client"
)
PARTITION_PATTERN = re.compile(r"(iid)|(dirichlet)-(\d*\.?\d+(?:e-?\d+)?)|(shards)-(\d+)")


def assign_clients(
    data: CachedTensors,
    labels: Tensor,
    how: str,
    num_clients: int,
    seed: int,
) -> Tensor:
    """Return what `partition_labels` does for the labels of this data, cached in a file."""
    _parse_partition(how)
    key = {
        "data": data.digest,
        "how": how,
        "num_clients": num_clients,
        "seed": seed,
        "version": 1,
    }

    def build() -> dict[str, Tensor]:
        return {"clients": partition_labels(labels, how, num_clients, seed)}

    return load_cached("clients", key, build)["clients"]


def partition_labels(
    labels: Tensor,
    how: str,
    num_clients: int,
    seed: int,
) -> Tensor:
    """Return the client of each example: equal random parts ("iid"), or label-skewed ones.

    "dirichlet-A" spreads each label over the clients in shares drawn from Dirichlet(A). "shards-N"
    sorts by label and gives each client N runs of equal length; examples left over by equal runs
    join a client with their label.
    """
    kind, number = _parse_partition(how)
    num_examples = len(labels)
    if type(num_clients) is not int or not 1 <= num_clients <= num_examples:
        fault = f"must be from 1 to {num_examples}, the number of examples"
        raise UserError(fault, field="num_clients", value=num_clients)
    if kind == "shards" and int(number) * num_clients > num_examples:
        fault = f"{num_clients} clients need more shards than the {num_examples} examples"
        raise UserError(f"partition={how!r}: {fault}")
    # flwr-datasets cuts "iid" parts without shuffling.
    rng = np.random.default_rng(derive_seed(seed, "partition", "order"))
    order = rng.permutation(num_examples)
    table = {"label": labels.numpy()[order], "row": order}
    partitioner = _make_partitioner(
        kind,
        number,
        num_clients,
        derive_seed(seed, "partition", how),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning for every draw that leaves a client empty
        try:
            clients = _partition_table(partitioner, table)
        except ValueError as error:
            fault = "not every client gets an example; use fewer clients or less skewed parts"
            given = f"partition={how!r}, num_clients={num_clients}"
            raise UserError(f"{given}: {fault} ({error})") from error
    return _fill_left_over(clients, labels)


def assign_by_name(names: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Return the client of each example by its client's name, and the names of the clients."""
    partitioner = import_library("flwr_datasets.partitioner").NaturalIdPartitioner("name")
    table = {"name": names, "row": range(len(names))}
    with redirect_stderr(io.StringIO()):  # its progress bar cannot be turned off
        clients = _partition_table(partitioner, table)
    client_names = []
    for client in range(partitioner.num_partitions):
        client_names.append(partitioner.partition_id_to_natural_id[client])
    return clients, client_names


def _parse_partition(how: str) -> tuple[str, str]:
    """Return the kind of a partition and its number, as text.

    >>> _parse_partition("dirichlet-0.5"), _parse_partition("iid")
    (('dirichlet', '0.5'), ('iid', ''))
    """
    match = PARTITION_PATTERN.fullmatch(how)
    if match is None:
        raise UserError(f"partition={how!r} is not one of: {ALLOWED_PARTITIONS}")
    kind = match[1] or match[2] or match[4]
    number = match[3] or match[5] or ""
    if kind != "iid" and float(number) == 0:
        raise UserError(f"partition={how!r} is not one of: {ALLOWED_PARTITIONS}")
    return kind, number


def _make_partitioner(
    kind: str,
    number: str,
    num_clients: int,
    seed: int,
) -> Any:
    partitioners = import_library("flwr_datasets.partitioner")
    if kind == "iid":
        return partitioners.IidPartitioner(num_clients)
    if kind == "shards":
        return partitioners.ShardPartitioner(
            num_clients,
            "label",
            int(number),
            seed=seed,
        )
    return partitioners.DirichletPartitioner(
        num_clients,
        "label",
        float(number),
        min_partition_size=1,
        seed=seed,
    )


def _partition_table(partitioner: Any, table: Mapping[str, Any]) -> Tensor:
    """Return the client of each row; -1 where the partitioner leaves a row out."""
    partitioner.dataset = import_library("datasets").Dataset.from_dict(table)
    clients = torch.full((len(table["row"]),), -1)
    for client in range(partitioner.num_partitions):
        rows = partitioner.load_partition(client)["row"][:]
        clients[torch.tensor(rows)] = client
    return clients


def _fill_left_over(clients: Tensor, labels: Tensor) -> Tensor:
    """Give each left-over example to the client of the one before it in the order of labels."""
    order = labels.argsort(stable=True)
    ordered_clients = clients[order]
    assigned = ordered_clients >= 0
    places = torch.arange(len(assigned))
    nearest_before = torch.where(assigned, places, -1).cummax(0).values
    # Those before the first assigned example join that one.
    first_assigned = int(assigned.int().argmax())
    nearest = nearest_before.where(nearest_before >= 0, first_assigned)
    return clients.scatter(0, order, ordered_clients[nearest])
