"""Shakespeare's plays: a client is a role, the task is to guess the next character (appendix, datasets and models).

The paper has 715 roles of at least two lines and 38,001 sequences to train on, the cut of TensorFlow Federated, whose
text has fewer speeches than the plays. Here the first 715 roles that speak at least twice are taken, in the order of
the source. In the Moby text (37 plays by their short names) that gives 37,613 sequences of 16,451 speeches to train on
and 4,429 of 1,851 to test (TensorFlow Federated: 16,068 and 2,356 speeches); all 1,137 such roles give 62,349.
"""

import numpy as np
import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.data.cache import load_cached
from fjord.data.characters import cut_sequences
from fjord.data.federated import PartitionedData, partition_tensors
from fjord.data.plays import PlayTexts, read_plays
from fjord.data.sources import find_source, source_fingerprint

HUB = "flwrlabs/shakespeare"
VERSION = 1
"""Of what is decoded here; a change makes old caches invalid."""


def load(
    source: str | None = None,
    seed: int = 0,
    *,
    min_speeches: int = 2,
    max_clients: int | None = 715,
) -> PartitionedData:
    """Return the first roles with enough speeches (lines, in LEAF's data), each with its last tenth held out.

    The source is a hub's name or a folder (see `fjord.data.plays`), whose own split is kept if it has one. Nothing is
    left to chance, so the seed changes nothing. Inputs are (N, 80) characters, targets the next ones.
    """
    if type(min_speeches) is not int or min_speeches < 2:
        raise UserError(
            f"min_speeches={min_speeches!r} must be at least 2: one to train on and one to test"
        )
    if max_clients is not None and (type(max_clients) is not int or max_clients < 1):
        raise UserError(f"max_clients={max_clients!r} must be at least 1, or None for all")
    place = find_source(source, "shakespeare", HUB)
    options = {"min_speeches": min_speeches, "max_clients": max_clients, "version": VERSION}
    key = {**source_fingerprint(place), **options}
    found = load_cached("shakespeare", key, lambda: _decoded(place, min_speeches, max_clients))
    train, test = (
        [found[f"{part}_{name}"] for name in ("inputs", "targets", "clients")]
        for part in ("train", "test")
    )
    return partition_tensors(
        (train[0], train[1]),
        train[2],
        (test[0], test[1]),
        test[2],
        prepare=prepare_characters,
        digest=found.digest,
    )


def prepare_characters(inputs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return characters, stored in bytes, as an embedding takes them."""
    return inputs.long()


def split_speeches(speeches: list[str]) -> tuple[list[str], list[str]]:
    """Return what a role trains on, and its last tenth, but at least one speech, which it is tested on."""
    kept = len(speeches) - max(1, len(speeches) // 10)
    return speeches[:kept], speeches[kept:]


def _decoded(source: str, min_speeches: int, max_clients: int | None) -> dict[str, Tensor]:
    plays = read_plays(source)
    own = plays.test or {}
    if strangers := [role for role in own if role not in plays.train]:
        hint = "split the lines of each role, not the roles (LEAF: -t sample)"
        raise UserError(
            f"source {source}: the role {strangers[0]!r} is in the test split alone; {hint}"
        )
    counts = {role: len(said) + len(own.get(role, ())) for role, said in plays.train.items()}
    chosen = [role for role, count in counts.items() if count >= min_speeches][:max_clients]
    if not chosen:
        most = max(counts.values(), default=0)
        raise UserError(
            f"source {source}: none of {len(counts)} roles has {min_speeches} speeches; the most is {most}"
        )
    return _tensors(plays, chosen)


def _tensors(plays: PlayTexts, chosen: list[str]) -> dict[str, Tensor]:
    if plays.test is None:
        parts = [split_speeches(plays.train[role]) for role in chosen]
    else:
        parts = [(plays.train[role], plays.test.get(role, [])) for role in chosen]
    train, test = ([plays.texts(part[i]) for part in parts] for i in range(2))
    return {**_part("train", train), **_part("test", test)}


def _part(name: str, texts: list[list[str]]) -> dict[str, Tensor]:
    inputs, targets, pieces = cut_sequences([text for own in texts for text in own])
    clients = np.repeat(np.arange(len(texts)), [len(own) for own in texts])
    arrays = {"inputs": inputs, "targets": targets, "clients": np.repeat(clients, pieces)}
    return {f"{name}_{key}": torch.from_numpy(array) for key, array in arrays.items()}
