"""CIFAR10, the paper's first task: 100 equal random clients; 24x24 crops, mirrored, normalised.

The smallest loader: copy it to add a dataset.
"""

from torch import Tensor

from fjord.data.augment import RandomCropFlip
from fjord.data.cache import load_cached
from fjord.data.federated import PartitionedData, partition_tensors
from fjord.data.images import read_images
from fjord.data.partitioners import assign_clients
from fjord.data.sources import find_source, source_fingerprint

HUB = "uoft-cs/cifar10"
IMAGE_SHAPE = (3, 32, 32)
NUM_CLASSES = 10
PREPARE = RandomCropFlip(24, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
"""With the published mean and deviation of the training images' channels."""
VERSION = 1
"""Of what `_decode_images` returns; a change makes old cache files invalid."""


def load(
    source: str | None = None,
    seed: int = 0,
    *,
    partition: str = "iid",
    num_clients: int = 100,
) -> PartitionedData:
    """Return the clients; the test set is the source's own.

    `source` is a hub's name or a folder with its columns img and label; by default cifar10 in
    FJORD_DATA if that is set, else the hub's uoft-cs/cifar10. `partition` is iid, dirichlet-0.5,
    shards-2 or the like.
    """
    # 1. Find the source, and decode it once; the key says everything the tensors depend on.
    fingerprint = source_fingerprint(find_source(source, "cifar10", HUB))
    key = {**fingerprint, "version": VERSION}
    tensors = load_cached("cifar10", key, lambda: _decode_images(fingerprint["source"]))
    # 2. Give each training example to a client.
    labels = tensors["train_labels"]
    clients = assign_clients(tensors, labels, partition, num_clients, seed)
    # 3. Put both together, with how stored inputs become model inputs.
    return partition_tensors(
        (tensors["train_images"], labels),
        clients,
        (tensors["test_images"], tensors["test_labels"]),
        prepare=PREPARE,
        digest=tensors.digest,
    )


def _decode_images(source: str) -> dict[str, Tensor]:
    """Return the images and labels of both splits, in bytes."""
    tensors = {}
    for split in ("train", "test"):
        images, labels = read_images(
            source,
            split,
            ("img", "label"),
            IMAGE_SHAPE,
            NUM_CLASSES,
        )
        tensors[f"{split}_images"] = images
        tensors[f"{split}_labels"] = labels
    return tensors
