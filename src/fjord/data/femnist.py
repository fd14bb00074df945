"""FEMNIST, the paper's second task: characters of 62 classes, whose clients are those who wrote them."""

from pathlib import Path

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.data import federated
from fjord.data.augment import ScalePixels
from fjord.data.cache import load_cached
from fjord.data.from_dataset import split_held_out
from fjord.data.images import decode_images, read_images, read_labels
from fjord.data.leaf import SIDE, LeafImages, leaf_folders, read_leaf
from fjord.data.partitioners import assign_by_name, assign_clients
from fjord.data.sources import find_source, is_local, open_split, source_fingerprint, split_names

HUB = "flwrlabs/femnist"
NUM_CLASSES = 62


def load(
    source: str | None = None, seed: int = 0, *, split_seed: int = 0
) -> federated.PartitionedData:
    """Return the writers as clients.

    `source` is a hub's name, a folder with its columns image, writer_id and character, or a folder of LEAF's JSON; by
    default femnist in FJORD_DATA if that is set, else the hub's flwrlabs/femnist. The test set is the source's own if
    it has one. Else a tenth of each writer's examples is held out, at least one of two or more, the same for every
    `seed`, so that runs compare: `split_seed` changes it.
    """
    return _of_writers(find_source(source, "femnist", HUB), split_seed)


def load_digits(
    source: str | None = None, seed: int = 0, *, split_seed: int = 0
) -> federated.PartitionedData:
    """Return the writers of digits alone, by default of the folder femnist_digits in FJORD_DATA; else as `load`."""
    return _of_writers(find_source(source, "femnist_digits", None), split_seed)


def load_skewed(
    source: str | None = None,
    seed: int = 0,
    *,
    partition: str = "dirichlet-0.5",
    num_clients: int = 3400,
) -> federated.PartitionedData:
    """Return a stand-in for FEMNIST: EMNIST's characters, which have no writers, cut into label-skewed clients.

    Its clients differ in what they write, not in how. `source` has the columns image and label and the splits train
    and test; by default it is the folder emnist_byclass in FJORD_DATA. `partition` may be any that CIFAR10 has.
    """
    key = source_fingerprint(find_source(source, "emnist_byclass", None))
    found = load_cached("emnist", {**key, "version": 1}, lambda: _decode_skewed(key["source"]))
    clients = assign_clients(found, found["train_labels"], partition, num_clients, seed)
    train, test = (
        (found[f"{split}_images"], found[f"{split}_labels"]) for split in ("train", "test")
    )
    return federated.partition_tensors(
        train, clients, test, prepare=ScalePixels(), digest=found.digest
    )


def _decode_skewed(source: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for split in ("train", "test"):
        images, labels = read_images(
            source, split, ("image", "label"), (1, SIDE, SIDE), NUM_CLASSES
        )
        found |= {f"{split}_images": images, f"{split}_labels": labels}
    return found


def _of_writers(source: str, split_seed: int) -> federated.PartitionedData:
    key = source_fingerprint(source)
    found = load_cached(
        "femnist",
        {**key, "split_seed": split_seed, "version": 1},
        lambda: _decode(source, split_seed),
    )
    train, test = (
        [found[f"{part}_{name}"] for name in ("images", "labels", "clients")]
        for part in ("train", "test")
    )
    return federated.partition_tensors(
        (train[0], train[1]),
        train[2],
        (test[0], test[1]),
        test[2],
        prepare=ScalePixels(),
        digest=found.digest,
    )


def _decode(source: str, split_seed: int) -> dict[str, Tensor]:
    train, test = _read(source)
    clients, names = assign_by_name(train.writers)
    if test is None:
        held = split_held_out(clients, names, split_seed)
        if not held.any():
            raise UserError(
                f"source {source}: no writer has two examples, so none can be held out for the test"
            )
        return {
            **_ordered("train", train, clients, ~held),
            **_ordered("test", train, clients, held),
        }
    numbers = {name: client for client, name in enumerate(names)}
    owners = torch.tensor([numbers.get(writer, -1) for writer in test.writers])
    return {
        **_ordered("train", train, clients, clients >= 0),
        **_ordered("test", test, owners, owners >= -1),
    }


def _read(source: str) -> tuple[LeafImages, LeafImages | None]:
    """Return the characters of a source, and those of its own test set if it has one."""
    if is_local(source) and (folders := leaf_folders(Path(source).expanduser())):
        parts = [read_leaf(folder, NUM_CLASSES) for folder in folders]
    else:
        own = ["test"] if "test" in split_names(source) else []
        parts = [_read_table(source, split) for split in ("train", *own)]
    return parts[0], parts[1] if len(parts) == 2 else None


def _read_table(source: str, split: str) -> LeafImages:
    table, where = (
        open_split(source, split, ["image", "character", "writer_id"]),
        f"source {source} ({split})",
    )
    writers = table["writer_id"][:]
    if None in writers:
        raise UserError(
            f"{where}, column 'writer_id', row {writers.index(None)}: there is no writer"
        )
    images = decode_images(table, "image", (1, SIDE, SIDE), where)
    return LeafImages(
        images,
        read_labels(table, "character", NUM_CLASSES, where),
        [str(writer) for writer in writers],
    )


def _ordered(part: str, written: LeafImages, clients: Tensor, chosen: Tensor) -> dict[str, Tensor]:
    """Return the chosen examples, those of a client side by side."""
    rows = chosen.nonzero().flatten()
    rows = rows[clients[rows].argsort(stable=True)]
    found = {
        "images": written.images[rows],
        "labels": written.labels[rows],
        "clients": clients[rows],
    }
    return {f"{part}_{name}": tensor for name, tensor in found.items()}
