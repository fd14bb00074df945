"""FEMNIST on small folders: writers are clients, a tenth is held out, LEAF's JSON is read too."""

import json
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from folders import LETTERS, WRITERS, as_bytes, needs, pictures, pixels, small_femnist, write
from folders import own_folders as own_folders  # an autouse fixture
from real_data import ROWS, column, image_at

from fjord.data import femnist
from fjord.data.federated import PartitionedData


def leaf(
    folder: Path, writers: list[str] = WRITERS, images: list[np.ndarray] | None = None
) -> Path:
    """Write characters in two files of LEAF's JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    images = pictures(40, 28, 28) if images is None else images
    users: dict[str, dict[str, list]] = {}
    for writer, image, letter in zip(writers, images, LETTERS, strict=False):
        own = users.setdefault(writer, {"x": [], "y": []})
        own["x"].append((image.flatten() / 255).tolist())
        own["y"].append(letter)
    for i, names in enumerate((list(users)[:2], list(users)[2:])):
        counts = [len(users[name]["y"]) for name in names]
        content = {
            "users": names,
            "num_samples": counts,
            "user_data": {name: users[name] for name in names},
        }
        if names:
            (folder / f"all_data_{i}.json").write_text(json.dumps(content))
    return folder


def same(one: PartitionedData, other: PartitionedData) -> None:
    assert one.num_clients == other.num_clients
    for client in range(one.num_clients):
        assert all(
            torch.equal(a, b)
            for a, b in zip(one.examples(client), other.examples(client), strict=True)
        )
    for name in ("inputs", "targets", "owners"):
        assert torch.equal(getattr(one.test, name), getattr(other.test, name))


def test_clients_are_writers_with_a_tenth_held_out(tmp_path: Path) -> None:
    data = femnist.load(str(small_femnist(tmp_path / "data")))
    assert [len(rows) for rows in data.rows] == [11, 23, 1, 1]  # a, b, c, d
    assert data.test.owners.tolist() == [0, 1, 1, 2]  # d has but one
    images = pictures(40, 28, 28)
    for client, writer in enumerate("abcd"):
        mine = sorted(as_bytes(images[row]) for row in range(40) if WRITERS[row] == writer)
        held = [i.numpy().tobytes() for i in data.test.inputs[data.test.owners == client]]
        assert sorted(pixels(data, client) + held) == mine
    batch = data.prepare(data.inputs[:2], torch.Generator())
    assert torch.equal(batch, data.inputs[:2] / 255)


def test_what_is_held_out_depends_on_the_writer_and_the_split_seed_alone(tmp_path: Path) -> None:
    folder = str(small_femnist(tmp_path / "data"))
    first = femnist.load(folder)
    same(first, femnist.load(folder, seed=1))
    assert not torch.equal(first.test.inputs, femnist.load(folder, split_seed=1).test.inputs)
    fewer = [i for i, w in enumerate(WRITERS) if w != "a"]
    cut = {
        "image": [pictures(40, 28, 28)[i] for i in fewer],
        "writer_id": [WRITERS[i] for i in fewer],
    }
    cut |= {"character": [LETTERS[i] for i in fewer], "hsf_id": [0] * len(fewer)}
    without = femnist.load(str(write(tmp_path / "fewer", **cut)))
    assert torch.equal(without.test.inputs, first.test.inputs[1:])


def test_leafs_json_gives_the_same_as_the_hubs_table(tmp_path: Path) -> None:
    same(femnist.load(str(small_femnist(tmp_path / "a"))), femnist.load(str(leaf(tmp_path / "b"))))


def test_a_split_of_the_source_is_kept(tmp_path: Path) -> None:
    own = {"image": pictures(5, 28, 28, seed=1), "writer_id": ["a", "stranger", "b", "b", "a"]}
    small_femnist(tmp_path / "a")
    table = small_femnist(tmp_path / "a", "test", **own, character=LETTERS[:5], hsf_id=[0] * 5)
    leaf(tmp_path / "b" / "train")
    leaf(tmp_path / "b" / "test", own["writer_id"], own["image"])
    data = femnist.load(str(table))
    assert [len(rows) for rows in data.rows] == [12, 25, 2, 1]
    assert data.test.owners.tolist() == [-1, 0, 0, 1, 1]
    assert data.test.targets.tolist() == [1, 0, 4, 2, 3]
    same(data, femnist.load(str(tmp_path / "b")))


def test_a_missing_writer_or_column_is_named(tmp_path: Path) -> None:
    folder = small_femnist(tmp_path / "a", writer_id=["a"] * 39 + [None])
    with pytest.raises(ValueError, match=r"column 'writer_id', row 39: there is no writer"):
        femnist.load(str(folder))
    folder = write(tmp_path / "b", image=pictures(2, 28, 28), label=[0, 1])
    with pytest.raises(
        ValueError, match=r"there is no column 'character'; its columns are image, label"
    ):
        femnist.load(str(folder))


def test_writers_of_one_example_each_leave_no_test_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no writer has two examples"):
        femnist.load(str(small_femnist(tmp_path / "a", writer_id=[f"w{i}" for i in range(40)])))


X = [[0.0] * 784, [1.0] * 784]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"users": ["u"], "user_', r"all.json: not complete JSON"),
        ([1, 2], r"all.json: there is no user in it"),
        ({"users": [], "user_data": {}}, r"all.json: there is no user in it"),
        (
            {"users": ["u", "v"], "user_data": {"u": {"x": X, "y": [0, 1]}}},
            r"all.json, user 'v': is not in both",
        ),
        (
            {"user_data": {"u": {"x": X, "y": [0, 1]}, "v": {"x": [], "y": []}}},
            r"all.json, user 'v': has no examples",
        ),
        ({"user_data": {"u": {"x": X, "y": [0]}}}, r"all.json, user 'u': lists .* of one length"),
        ({"user_data": {"u": {"x": X}}}, r"all.json, user 'u': lists"),
        ({"user_data": {"u": 7}}, r"all.json, user 'u': lists"),
        (
            {"user_data": {"u": {"x": X, "y": [0, 62]}}},
            r"user 'u', row 1: label 62 must be from 0 to 61",
        ),
        ({"user_data": {"u": {"x": X, "y": [0, "a"]}}}, r"user 'u': labels must be whole numbers"),
        (
            {"user_data": {"u": {"x": [[0.0] * 783] * 2, "y": [0, 1]}}},
            r"user 'u': its pixels have shape",
        ),
        (
            {"user_data": {"u": {"x": [[0.0] * 783, [0.0]], "y": [0, 1]}}},
            r"user 'u': its pixels are not rows",
        ),
        (
            {"user_data": {"u": {"x": [["a"] * 784] * 2, "y": [0, 1]}}},
            r"user 'u': its pixels are not rows",
        ),
        (
            {"user_data": {"u": {"x": [[7.0] * 784] * 2, "y": [0, 1]}}},
            r"user 'u': its pixels are not all of",
        ),
        (
            {"user_data": {"u": {"x": [[0.123] * 784] * 2, "y": [0, 1]}}},
            r"user 'u': its pixels are not all of",
        ),
    ],
)
def test_wrong_json_is_named_with_file_and_user(
    tmp_path: Path, content: object, named: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "all.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    with pytest.raises(ValueError, match=named):
        femnist.load(str(tmp_path / "data"))


def test_the_stand_in_has_as_many_clients_as_asked_for(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "data", image=pictures(200, 28, 28), label=[i % 62 for i in range(200)]
    )
    write(folder, "test", image=pictures(3, 28, 28, seed=1), label=[1, 2, 3])
    data = femnist.load_skewed(str(folder), num_clients=10)
    assert data.num_clients == 10
    assert sorted(torch.cat(data.rows).tolist()) == list(range(200))
    assert data.test.targets.tolist() == [1, 2, 3]


def test_a_recipes_data_is_made_from_the_seed(tmp_path: Path) -> None:
    folder = str(small_femnist(tmp_path / "data"))
    same(partial(femnist.load, folder)(3), femnist.load(folder))


@needs("femnist_digits")
def test_femnist_digits_has_every_writer_with_a_tenth_held_out(decoded: Path) -> None:
    data = femnist.load_digits()
    writers, labels = (
        column("femnist_digits", "train", "writer_id"),
        column("femnist_digits", "train", "character"),
    )
    counts = Counter(writers)
    held = Counter(data.test.owners.tolist())
    assert data.num_clients == len(counts) == 836
    for client, (_, count) in enumerate(sorted(counts.items())):
        assert (len(data.rows[client]), held[client]) == (
            count - max(1, count // 10),
            max(1, count // 10),
        )
    assert Counter(data.targets.tolist()) + Counter(data.test.targets.tolist()) == Counter(labels)
    first = [row for row, writer in enumerate(writers) if writer == min(counts)]
    test = [image.numpy().tobytes() for image in data.test.inputs[data.test.owners == 0]]
    assert sorted(pixels(data, 0) + test) == sorted(
        image_at("femnist_digits", "train", "image", first)
    )


@needs("emnist_byclass")
def test_emnist_is_the_source_in_3400_unequal_clients(decoded: Path) -> None:
    data = femnist.load_skewed()
    assert data.num_clients == 3400
    assert sorted(torch.cat(data.rows).tolist()) == list(range(171_319))
    assert min(len(rows) for rows in data.rows) >= 1
    for split, (inputs, targets) in {
        "train": data.all_examples(),
        "test": (data.test.inputs, data.test.targets),
    }.items():
        assert targets.tolist() == column("emnist_byclass", split, "label")
        assert [inputs[row].numpy().tobytes() for row in ROWS] == image_at(
            "emnist_byclass", split, "image", ROWS
        )
    classes = [len(data.examples(client)[1].unique()) for client in range(0, 3400, 100)]
    assert sum(classes) / len(classes) < 24  # 25.3 where the clients are random
