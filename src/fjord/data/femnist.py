"""FEMNIST, the paper's second task: characters of 62 classes, whose clients are their writers."""

from pathlib import Path

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.data.augment import ScalePixels
from fjord.data.cache import load_cached
from fjord.data.federated import PartitionedData, partition_tensors
from fjord.data.from_dataset import split_held_out
from fjord.data.images import decode_images, read_images, read_labels
from fjord.data.leaf import SIDE, LeafImages, leaf_folders, read_leaf
from fjord.data.partitioners import assign_by_name, assign_clients
from fjord.data.sources import find_source, is_local, open_split, source_fingerprint, split_names

HUB = "flwrlabs/femnist"
IMAGE_SHAPE = (1, SIDE, SIDE)
NUM_CLASSES = 62
VERSION = 1
"""Of what is decoded here; a change makes old cache files invalid."""


def load(
    source: str | None = None,
    seed: int = 0,
    *,
    split_seed: int = 0,
) -> PartitionedData:
    """Return the writers as clients.

    `source` is a hub's name, a folder with its columns image, writer_id and character, or a folder
    of LEAF's JSON; by default femnist in FJORD_DATA if that is set, else the hub's
    flwrlabs/femnist. The test set is the source's own if it has one. Else a tenth of each writer's
    examples is held out, at least one of two or more, the same for every `seed`, so that runs
    compare: `split_seed` changes it.
    """
    return _load_writers(find_source(source, "femnist", HUB), split_seed)


def load_digits(
    source: str | None = None,
    seed: int = 0,
    *,
    split_seed: int = 0,
) -> PartitionedData:
    """Return the writers of digits alone, like `load`.

    The default source is the folder femnist_digits in FJORD_DATA.
    """
    return _load_writers(find_source(source, "femnist_digits", None), split_seed)


def load_skewed(
    source: str | None = None,
    seed: int = 0,
    *,
    partition: str = "dirichlet-0.5",
    num_clients: int = 3400,
) -> PartitionedData:
    """Return a stand-in for FEMNIST: EMNIST, which has no writers, in label-skewed clients.

    Its clients differ in what they write, not in how. `source` has the columns image and label and
    the splits train and test; by default it is the folder emnist_byclass in FJORD_DATA. `partition`
    may be any that CIFAR10 has.
    """
    fingerprint = source_fingerprint(find_source(source, "emnist_byclass", None))
    key = {**fingerprint, "version": VERSION}
    tensors = load_cached("emnist", key, lambda: _decode_skewed(fingerprint["source"]))
    labels = tensors["train_labels"]
    clients = assign_clients(tensors, labels, partition, num_clients, seed)
    return partition_tensors(
        (tensors["train_images"], labels),
        clients,
        (tensors["test_images"], tensors["test_labels"]),
        prepare=ScalePixels(),
        digest=tensors.digest,
    )


def _decode_skewed(source: str) -> dict[str, Tensor]:
    tensors = {}
    for split in ("train", "test"):
        images, labels = read_images(
            source,
            split,
            ("image", "label"),
            IMAGE_SHAPE,
            NUM_CLASSES,
        )
        tensors[f"{split}_images"] = images
        tensors[f"{split}_labels"] = labels
    return tensors


def _load_writers(source: str, split_seed: int) -> PartitionedData:
    key = {**source_fingerprint(source), "split_seed": split_seed, "version": VERSION}
    tensors = load_cached("femnist", key, lambda: _decode_writers(source, split_seed))
    return partition_tensors(
        (tensors["train_images"], tensors["train_labels"]),
        tensors["train_clients"],
        (tensors["test_images"], tensors["test_labels"]),
        tensors["test_clients"],
        prepare=ScalePixels(),
        digest=tensors.digest,
    )


def _decode_writers(source: str, split_seed: int) -> dict[str, Tensor]:
    train, test = _read_source(source)
    clients, names = assign_by_name(train.writers)
    if test is None:
        return _hold_out(
            source,
            train,
            clients,
            split_seed=split_seed,
            names=names,
        )
    numbers = {name: client for client, name in enumerate(names)}
    # A writer of the test set alone is nobody's client: -1.
    owners = torch.tensor([numbers.get(writer, -1) for writer in test.writers])
    train_tensors = _order_by_client("train", train, clients, clients >= 0)
    test_tensors = _order_by_client("test", test, owners, owners >= -1)
    return {**train_tensors, **test_tensors}


def _hold_out(
    source: str,
    train: LeafImages,
    clients: Tensor,
    *,
    split_seed: int,
    names: list[str],
) -> dict[str, Tensor]:
    """Return the examples of a source without a test set, a part of them as the test set."""
    held_out = split_held_out(clients, names, split_seed)
    if not held_out.any():
        fault = "no writer has two examples, so none can be held out for the test"
        raise UserError(f"source {source}: {fault}")
    train_tensors = _order_by_client("train", train, clients, ~held_out)
    test_tensors = _order_by_client("test", train, clients, held_out)
    return {**train_tensors, **test_tensors}


def _read_source(source: str) -> tuple[LeafImages, LeafImages | None]:
    """Return the characters of a source, and those of its own test set if it has one."""
    folders = []
    if is_local(source):
        folders = leaf_folders(Path(source).expanduser())
    if folders:
        parts = [read_leaf(folder, NUM_CLASSES) for folder in folders]
    else:
        parts = [_read_table(source, "train")]
        if "test" in split_names(source):
            parts.append(_read_table(source, "test"))
    if len(parts) == 2:
        return parts[0], parts[1]
    return parts[0], None


def _read_table(source: str, split: str) -> LeafImages:
    table = open_split(source, split, ["image", "character", "writer_id"])
    where = f"source {source} ({split})"
    writers = table["writer_id"][:]
    if None in writers:
        row = writers.index(None)
        raise UserError(f"{where}, column 'writer_id', row {row}: there is no writer")
    images = decode_images(table, "image", IMAGE_SHAPE, where)
    labels = read_labels(table, "character", NUM_CLASSES, where)
    return LeafImages(images, labels, [str(writer) for writer in writers])


def _order_by_client(
    part: str,
    examples: LeafImages,
    clients: Tensor,
    chosen: Tensor,
) -> dict[str, Tensor]:
    """Return the chosen examples, those of a client side by side."""
    rows = chosen.nonzero().flatten()
    order = clients[rows].argsort(stable=True)
    rows = rows[order]
    return {
        f"{part}_images": examples.images[rows],
        f"{part}_labels": examples.labels[rows],
        f"{part}_clients": clients[rows],
    }
