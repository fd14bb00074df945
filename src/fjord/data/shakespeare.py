"""Shakespeare's plays: a client is a role, the task is next-character prediction (appendix).

The paper has 715 roles of at least two lines and 38,001 sequences to train on, the cut of
TensorFlow Federated, whose text has fewer speeches than the plays. Here the first 715 roles that
speak at least twice are used, in the order of the source. In the Moby text (37 plays by their short
names) that gives 37,613 sequences of 16,451 speeches to train on and 4,429 of 1,851 to test
(TensorFlow Federated: 16,068 and 2,356 speeches); all 1,137 such roles give 62,349.
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
"""Of what is decoded here; a change makes old cache files invalid."""


def load(
    source: str | None = None,
    seed: int = 0,
    *,
    min_speeches: int = 2,
    max_clients: int | None = 715,
) -> PartitionedData:
    """Return the first roles with enough speeches (lines, in LEAF's data), a tenth held out.

    The source is a hub's name or a folder (see `fjord.data.plays`), whose own split is kept if it
    has one. Nothing is random, so the seed changes nothing. Inputs are (N, 80) characters, targets
    the next ones.
    """
    if type(min_speeches) is not int or min_speeches < 2:
        fault = "must be at least 2: one to train on and one to test"
        raise UserError(fault, field="min_speeches", value=min_speeches)
    if max_clients is not None and (type(max_clients) is not int or max_clients < 1):
        fault = "must be at least 1, or None for all"
        raise UserError(fault, field="max_clients", value=max_clients)
    place = find_source(source, "shakespeare", HUB)
    key = {
        **source_fingerprint(place),
        "min_speeches": min_speeches,
        "max_clients": max_clients,
        "version": VERSION,
    }
    tensors = load_cached("shakespeare", key, lambda: _decode(place, min_speeches, max_clients))
    return partition_tensors(
        (tensors["train_inputs"], tensors["train_targets"]),
        tensors["train_clients"],
        (tensors["test_inputs"], tensors["test_targets"]),
        tensors["test_clients"],
        prepare=prepare_characters,
        digest=tensors.digest,
    )


def prepare_characters(inputs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return characters, stored in bytes, as an embedding takes them."""
    return inputs.long()


def split_speeches(speeches: list[str]) -> tuple[list[str], list[str]]:
    """Return what a role trains on, and the last tenth, at least one speech, to test on."""
    num_tested = max(1, len(speeches) // 10)
    num_trained = len(speeches) - num_tested
    return speeches[:num_trained], speeches[num_trained:]


def _decode(
    source: str,
    min_speeches: int,
    max_clients: int | None,
) -> dict[str, Tensor]:
    plays = read_plays(source)
    test = plays.test or {}
    for role in test:
        if role not in plays.train:
            hint = "split the lines of each role, not the roles (LEAF: -t sample)"
            fault = f"the role {role!r} is in the test split alone"
            raise UserError(f"source {source}: {fault}; {hint}")
    counts = {}
    for role, speeches in plays.train.items():
        num_tested = len(test.get(role, ()))
        counts[role] = len(speeches) + num_tested
    roles = [role for role, count in counts.items() if count >= min_speeches]
    if not roles:
        most = max(counts.values(), default=0)
        fault = f"none of {len(counts)} roles has {min_speeches} speeches; the most is {most}"
        raise UserError(f"source {source}: {fault}")
    return _make_tensors(plays, roles[:max_clients])


def _make_tensors(plays: PlayTexts, roles: list[str]) -> dict[str, Tensor]:
    """Return the sequences of some roles, who are the clients."""
    train_texts = []
    test_texts = []
    for role in roles:
        if plays.test is None:
            train, test = split_speeches(plays.train[role])
        else:
            train = plays.train[role]
            test = plays.test.get(role, [])
        train_texts.append(plays.make_texts(train))
        test_texts.append(plays.make_texts(test))
    return {**_sequence_tensors("train", train_texts), **_sequence_tensors("test", test_texts)}


def _sequence_tensors(part: str, texts_by_client: list[list[str]]) -> dict[str, Tensor]:
    texts = []
    clients = []
    for client, own_texts in enumerate(texts_by_client):
        texts += own_texts
        clients += [client] * len(own_texts)
    inputs, targets, num_sequences = cut_sequences(texts)
    owners = np.repeat(np.array(clients, np.int64), num_sequences)
    return {
        f"{part}_inputs": torch.from_numpy(inputs),
        f"{part}_targets": torch.from_numpy(targets),
        f"{part}_clients": torch.from_numpy(owners),
    }
