"""CIFAR10, the paper's first task: 100 equal random clients; random 24x24 crops, mirrored, normalised."""

from typing import Any

from torch import Tensor

from fjord.data import federated
from fjord.data.augment import RandomCropFlip
from fjord.data.cache import load_cached
from fjord.data.images import read_images
from fjord.data.partitioners import assign_clients
from fjord.data.sources import find_source, source_fingerprint

HUB = "uoft-cs/cifar10"
PREPARE = RandomCropFlip(24, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
"""The published mean and deviation of the training images' channels."""


def load(
    source: str | None = None, seed: int = 0, *, partition: str = "iid", num_clients: int = 100
) -> federated.PartitionedData:
    """Return the clients; the test set is the source's own.

    `source` is a hub's name or a folder with its columns img and label; by default cifar10 in FJORD_DATA if that is
    set, else the hub's uoft-cs/cifar10. `partition` is iid, dirichlet-0.5, shards-2 or the like.
    """
    key = source_fingerprint(find_source(source, "cifar10", HUB))
    found = load_cached("cifar10", {**key, "version": 1}, lambda: _decode(key["source"]))
    clients = assign_clients(found, found["train_labels"], partition, num_clients, seed)
    train, test = (
        (found[f"{split}_images"], found[f"{split}_labels"]) for split in ("train", "test")
    )
    return federated.partition_tensors(train, clients, test, prepare=PREPARE, digest=found.digest)


def _decode(source: str) -> dict[str, Tensor]:
    found: dict[str, Any] = {}
    for split in ("train", "test"):
        found[f"{split}_images"], found[f"{split}_labels"] = read_images(
            source, split, ("img", "label"), (3, 32, 32), 10
        )
    return found
