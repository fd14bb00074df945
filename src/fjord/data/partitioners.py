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

ALLOWED = (
    "iid, dirichlet-A with a number A such as dirichlet-0.5, shards-N with N shards for each client"
)


def assign_clients(
    data: CachedTensors, labels: Tensor, how: str, num_clients: int, seed: int
) -> Tensor:
    """Return what `partition_labels` does for labels of this data, from the cache if it was done before."""
    _parsed(how)
    key = {"data": data.digest, "how": how, "num_clients": num_clients, "seed": seed, "version": 1}
    return load_cached(
        "clients", key, lambda: {"clients": partition_labels(labels, how, num_clients, seed)}
    )["clients"]


def partition_labels(labels: Tensor, how: str, num_clients: int, seed: int) -> Tensor:
    """Return the client of each example: equal random parts ("iid"), or label-skewed ones.

    "dirichlet-A" spreads each label over the clients in shares drawn from Dirichlet(A). "shards-N" sorts by label
    and gives each client N runs of equal length; examples left over by equal runs join a client with their label.
    """
    kind, number = _parsed(how)
    if type(num_clients) is not int or not 1 <= num_clients <= len(labels):
        raise UserError(
            f"num_clients={num_clients!r} must be from 1 to {len(labels)}, the number of examples"
        )
    if kind == "shards" and int(number) * num_clients > len(labels):
        raise UserError(
            f"partition={how!r}: {num_clients} clients need more shards than the {len(labels)} examples"
        )
    order = np.random.default_rng(derive_seed(seed, "partition", "order")).permutation(len(labels))
    table = {
        "label": labels.numpy()[order],
        "row": order,
    }  # flwr-datasets cuts "iid" parts without shuffling
    partitioner = _partitioner(kind, number, num_clients, derive_seed(seed, "partition", how))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning for every draw that leaves a client empty
        try:
            found = _clients(partitioner, table)
        except ValueError as error:
            fault = (
                "not every client gets an example; take fewer clients, or parts that differ less"
            )
            raise UserError(
                f"partition={how!r}, num_clients={num_clients}: {fault} ({error})"
            ) from error
    return _filled(found, labels)


def assign_by_name(names: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Return the client of each example of which the client's name is given, and the clients' names in order."""
    partitioner = import_library("flwr_datasets.partitioner").NaturalIdPartitioner("name")
    with redirect_stderr(io.StringIO()):  # its progress bar cannot be turned off
        clients = _clients(partitioner, {"name": names, "row": range(len(names))})
    return clients, [
        partitioner.partition_id_to_natural_id[client]
        for client in range(partitioner.num_partitions)
    ]


def _parsed(how: str) -> tuple[str, str]:
    match = re.fullmatch(r"(iid)|(dirichlet)-(\d*\.?\d+(?:e-?\d+)?)|(shards)-(\d+)", how)
    if match is None or not (match[1] or float(match[3] or match[5])):
        raise UserError(f"partition={how!r} is not one of: {ALLOWED}")
    return match[1] or match[2] or match[4], match[3] or match[5] or ""


def _partitioner(kind: str, number: str, num_clients: int, seed: int) -> Any:
    partitioners = import_library("flwr_datasets.partitioner")
    if kind == "iid":
        return partitioners.IidPartitioner(num_clients)
    if kind == "shards":
        return partitioners.ShardPartitioner(num_clients, "label", int(number), seed=seed)
    return partitioners.DirichletPartitioner(
        num_clients, "label", float(number), min_partition_size=1, seed=seed
    )


def _clients(partitioner: Any, table: Mapping[str, Any]) -> Tensor:
    """Return the client of each row; -1 where the partitioner leaves a row out."""
    partitioner.dataset = import_library("datasets").Dataset.from_dict(table)
    clients = torch.full((len(table["row"]),), -1)
    for client in range(partitioner.num_partitions):
        clients[torch.tensor(partitioner.load_partition(client)["row"][:])] = client
    return clients


def _filled(clients: Tensor, labels: Tensor) -> Tensor:
    """Give each example that is left out to the client of the one before it in the order of labels."""
    order = labels.argsort(stable=True)
    kept = clients[order] >= 0
    before = torch.where(kept, torch.arange(len(kept)), -1).cummax(0).values
    before = before.where(before >= 0, int(kept.int().argmax()))
    return clients.scatter(0, order, clients[order][before])
