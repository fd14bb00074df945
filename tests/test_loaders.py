"""The loaders of images: on real data where FJORD_DATA has it, and on small folders made here everywhere."""

import io
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import commands
from fjord.data import cifar10, femnist
from fjord.data.augment import CropFlip, Scale
from fjord.data.federated import Partitioned
from fjord.data.partitioners import assign, assign_by_name
from fjord.data.sources import find_source, fingerprint, is_local, open_split
from fjord.recipes.paper import RECIPES
from folders import DATA, LETTERS, WRITERS, needs, pictures, small_cifar, small_femnist, write


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    real = "decoded" in request.fixturenames
    monkeypatch.setenv("FJORD_CACHE", str(request.getfixturevalue("decoded") if real else tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    if not real:
        monkeypatch.delenv("FJORD_DATA", raising=False)


def pixels(data: Partitioned, client: int) -> list[bytes]:
    return sorted(image.numpy().tobytes() for image in data.examples(client)[0])


def as_bytes(image: np.ndarray) -> bytes:
    return (image if image.ndim == 2 else image.transpose(2, 0, 1)).tobytes()


# ------------------------------------------------------------------------------------------------------ real data


def column(name: str, split: str, wanted: str) -> list:
    """Read a column of the source without any of the code under test."""
    (file,) = (Path(DATA) / name).glob(f"{split}-*.parquet")
    return pq.read_table(file, columns=[wanted])[wanted].to_pylist()


def image_at(name: str, split: str, wanted: str, rows: list[int]) -> list[bytes]:
    cells = column(name, split, wanted)
    return [as_bytes(np.asarray(Image.open(io.BytesIO(cells[row]["bytes"])))) for row in rows]


ROWS = [0, 1, 777, 4999, 9999]


@needs("cifar10")
def test_cifar10_is_the_source_in_100_clients_of_500(decoded: Path) -> None:
    data = cifar10.load()
    assert [len(rows) for rows in data.rows] == [500] * 100
    assert sorted(torch.cat(data.rows).tolist()) == list(range(50_000))
    for split, (inputs, targets) in {"train": data.union(), "test": (data.test.inputs, data.test.targets)}.items():
        assert targets.tolist() == column("cifar10", split, "label")
        assert [inputs[row].numpy().tobytes() for row in ROWS] == image_at("cifar10", split, "img", ROWS)
    assert data.test.owners.eq(-1).all()
    assert data.inputs.dtype == torch.uint8
    assert torch.allclose(data.inputs.float().mean((0, 2, 3)) / 255, torch.tensor(cifar10.PREPARE.mean), atol=1e-4)
    assert torch.allclose(data.inputs.float().std((0, 2, 3)) / 255, torch.tensor(cifar10.PREPARE.std), atol=1e-4)


@needs("femnist_digits")
def test_femnist_digits_has_every_writer_with_a_tenth_held_out(decoded: Path) -> None:
    data = femnist.load_digits()
    writers, labels = column("femnist_digits", "train", "writer_id"), column("femnist_digits", "train", "character")
    counts = Counter(writers)
    held = Counter(data.test.owners.tolist())
    assert data.num_clients == len(counts) == 836
    for client, (_, count) in enumerate(sorted(counts.items())):
        assert (len(data.rows[client]), held[client]) == (count - max(1, count // 10), max(1, count // 10))
    assert Counter(data.targets.tolist()) + Counter(data.test.targets.tolist()) == Counter(labels)
    first = [row for row, writer in enumerate(writers) if writer == min(counts)]
    test = [image.numpy().tobytes() for image in data.test.inputs[data.test.owners == 0]]
    assert sorted(pixels(data, 0) + test) == sorted(image_at("femnist_digits", "train", "image", first))


@needs("emnist_byclass")
def test_emnist_is_the_source_in_3400_unequal_clients(decoded: Path) -> None:
    data = femnist.load_skewed()
    assert data.num_clients == 3400
    assert sorted(torch.cat(data.rows).tolist()) == list(range(171_319))
    assert min(len(rows) for rows in data.rows) >= 1
    for split, (inputs, targets) in {"train": data.union(), "test": (data.test.inputs, data.test.targets)}.items():
        assert targets.tolist() == column("emnist_byclass", split, "label")
        assert [inputs[row].numpy().tobytes() for row in ROWS] == image_at("emnist_byclass", split, "image", ROWS)
    classes = [len(data.examples(client)[1].unique()) for client in range(0, 3400, 100)]
    assert sum(classes) / len(classes) < 24  # 25.3 where the clients are random


SECOND = """
import sys, time
from fjord.data import cifar10, femnist
data = {}()
assert not {{"datasets", "flwr_datasets", "PIL", "pyarrow"}} & sys.modules.keys()
"""


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("cifar10.load", marks=needs("cifar10")),
        pytest.param("femnist.load_digits", marks=needs("femnist_digits")),
        pytest.param("femnist.load_skewed", marks=needs("emnist_byclass")),
    ],
)
def test_a_second_start_needs_none_of_the_libraries(decoded: Path, call: str) -> None:
    eval(call)()
    assert commands.Python("-c", SECOND.format(call)).wait() == 0


# --------------------------------------------------------------------------------------------- small CIFAR10 folders


def test_a_small_folder_is_read_as_it_is(tmp_path: Path) -> None:
    folder = small_cifar(tmp_path / "data")
    data = cifar10.load(str(folder), num_clients=8)
    assert [len(rows) for rows in data.rows] == [5] * 8
    assert [image.numpy().tobytes() for image in data.inputs] == [as_bytes(i) for i in pictures(40, 32, 32, 3)]
    assert data.targets.tolist() == [i % 10 for i in range(40)]
    assert data.test.targets.tolist() == [5, 4, 3, 2, 1, 0]
    assert data.test.batch(0, 3)[0].shape == (3, 3, 24, 24)
    assert data.examples(0)[1].dtype == torch.int64


def test_a_split_in_several_files_is_read_in_order(tmp_path: Path) -> None:
    folder = small_cifar(tmp_path / "data")
    write(folder, part="00001-of-00002", img=pictures(3, 32, 32, 3, seed=2), label=[7, 8, 9])
    data = cifar10.load(str(folder), num_clients=1)
    assert data.targets.tolist() == [i % 10 for i in range(40)] + [7, 8, 9]


def test_the_seed_names_the_partition(tmp_path: Path) -> None:
    folder = str(small_cifar(tmp_path / "data"))
    rows = [torch.cat(cifar10.load(folder, seed, num_clients=8).rows).tolist() for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]
    assert torch.cat(cifar10.load(folder, partition="shards-1", num_clients=10).rows).tolist() != rows[0]


def test_a_changed_source_is_decoded_anew(tmp_path: Path) -> None:
    folder = small_cifar(tmp_path / "data")
    cifar10.load(str(folder), num_clients=8)
    small_cifar(folder, label=[9 - i % 10 for i in range(40)])
    assert cifar10.load(str(folder), num_clients=8).targets[:3].tolist() == [9, 8, 7]


def test_nothing_is_left_of_what_datasets_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    table = open_split(str(small_cifar(tmp_path / "data")), "train", ["img", "label"])
    assert list((tmp_path / "temporary").iterdir()) == []
    assert table[39]["label"] == 9


def png(**change: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pictures(1, 32, 32, 3)[0]).save(buffer, "png")
    return buffer.getvalue()


BROKEN = png()[:200] + b"\0\0\0\0" + png()[204:]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"label": [0] * 39 + [10]}, r"\(train\), column 'label', row 39: label 10 must be from 0 to 9"),
        ({"label": [0] * 5 + [-1] * 35}, r"column 'label', row 5: label -1"),
        ({"label": [0, None] * 20}, r"column 'label', row 1: there is no label"),
        ({"label": [0.5] * 40}, r"column 'label': labels must be whole numbers"),
        ({"label": ["cat"] * 40}, r"column 'label': labels must be whole numbers"),
        ({"img": [*pictures(39, 32, 32, 3), *pictures(1, 28, 32, 3)]}, r"row 39: the image is RGB of 32x28; it must"),
        ({"img": pictures(40, 32, 32)}, r"column 'img', row 0: the image is L of 32x32; it must be RGB of 32x32"),
        ({"img": [*pictures(7, 32, 32, 3), *[None] * 33]}, r"column 'img', row 7: there is no image"),
        (
            {"img": [*pictures(3, 32, 32, 3), *[{"bytes": b"no"}] * 37]},
            r"\(train\), column 'img', row 3: this is not an image",
        ),
        ({"img": [*pictures(4, 32, 32, 3), *[{"bytes": BROKEN}] * 36]}, r"\(train\), column 'img', row 4: "),
        ({"img": [*pictures(2, 32, 32, 3), *[{"bytes": png()[:300]}] * 38]}, r"column 'img', row 2: "),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, changed: dict, named: str) -> None:
    folder = small_cifar(tmp_path / "data", **changed)
    with pytest.raises(ValueError, match=named) as caught:
        cifar10.load(str(folder), num_clients=2)
    assert str(folder) in str(caught.value)


def test_an_empty_split_or_one_of_other_columns_is_named(tmp_path: Path) -> None:
    folder = small_cifar(tmp_path / "data")
    table = pq.read_table(folder / "train-00000-of-00001.parquet")
    pq.write_table(table.slice(0, 0), folder / "train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match=r"train-00000-of-00001.parquet: there are no rows in it"):
        cifar10.load(str(folder), num_clients=1)
    pq.write_table(table.rename_columns(["img", "digit"]), folder / "train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match=r"parquet: its columns are .*digit \(int64\); those of other files are"):
        cifar10.load(str(folder), num_clients=1)


def test_a_wrong_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", image=pictures(4, 32, 32, 3), label=[0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"\(train\): there is no column 'img'; its columns are image, label"):
        cifar10.load(str(folder))


def test_a_column_that_is_no_image_is_named(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"img": [3, 4], "label": [0, 1]}).to_parquet(tmp_path / "data" / "train-0.parquet")
    with pytest.raises(ValueError, match=r"\(train\): column 'img' holds Value\('int64'\), not images"):
        cifar10.load(str(tmp_path / "data"))


def test_a_missing_split_is_named_with_those_there_are(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", img=pictures(4, 32, 32, 3), label=[0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"there is no split 'test'; its splits are train"):
        cifar10.load(str(folder), num_clients=2)


@pytest.mark.parametrize("damage", ["cut", "bytes"])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, damage: str) -> None:
    folder = small_cifar(tmp_path / "data")
    file = folder / "train-00000-of-00001.parquet"
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(
        content[:-50] if damage == "cut" else content[:middle] + bytes(20_000) + content[middle + 20_000 :]
    )
    with pytest.raises(ValueError, match=r"train-00000-of-00001.parquet: this parquet file cannot be read|row \d+"):
        cifar10.load(str(folder), num_clients=2)


# ------------------------------------------------------------------------------------------------------- sources


def test_where_data_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "femnist_digits").mkdir()
    assert find_source(None, "cifar10", "owner/name") == "owner/name"
    monkeypatch.setenv("FJORD_DATA", str(tmp_path))
    assert find_source("given", "cifar10", "owner/name") == "given"
    assert find_source(None, "cifar10", "owner/name") == str(tmp_path / "cifar10")
    held = (
        r"/femnist: there is no such folder; .* holds cifar10 \(recipe cifar10\), femnist_digits \(recipe femnist-dig"
    )
    with pytest.raises(ValueError, match=held):
        femnist.load()
    monkeypatch.setenv("FJORD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"FJORD_DATA=.*nowhere: there is no such folder"):
        cifar10.load()


def test_data_that_no_hub_has_must_be_given() -> None:
    with pytest.raises(ValueError, match="emnist_byclass is on no hub: give its folder, or set FJORD_DATA"):
        femnist.load_skewed()


@pytest.mark.parametrize(
    ("source", "local"),
    [("name", False), ("owner/name", False), ("a-b/c.d_e@v1", False), ("/a/b", True), ("./a", True), ("~/a", True)],
)
def test_what_cannot_be_a_hubs_name_is_a_folder(source: str, local: bool) -> None:
    assert is_local(source) == local


def test_a_folder_that_is_there_is_no_hubs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert is_local("owner/name")
    assert fingerprint("owner/name")["source"] == str(tmp_path / "owner" / "name")


@pytest.mark.parametrize(("name", "fault"), [("absent", "there is no such folder"), ("file", "this is a file")])
def test_a_source_that_is_no_folder_is_named(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=rf"source .*/{name}: {fault}"):
        cifar10.load(str(tmp_path / name))


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"source {tmp_path}: "):
        cifar10.load(str(tmp_path))


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"source owner/nothing: no such folder here, and the hub does not give it"):
        cifar10.load("owner/nothing")


def test_without_the_extra_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small_cifar(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'fjord-fl\[data\]'"):
        cifar10.load(str(folder))


# ------------------------------------------------------------------------------------------------------- FEMNIST


def leaf(folder: Path, writers: list[str] = WRITERS, images: list[np.ndarray] | None = None) -> Path:
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
        content = {"users": names, "num_samples": counts, "user_data": {name: users[name] for name in names}}
        if names:
            (folder / f"all_data_{i}.json").write_text(json.dumps(content))
    return folder


def same(one: Partitioned, other: Partitioned) -> None:
    assert one.num_clients == other.num_clients
    for client in range(one.num_clients):
        assert all(torch.equal(a, b) for a, b in zip(one.examples(client), other.examples(client), strict=True))
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
    cut = {"image": [pictures(40, 28, 28)[i] for i in fewer], "writer_id": [WRITERS[i] for i in fewer]}
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
    with pytest.raises(ValueError, match=r"there is no column 'character'; its columns are image, label"):
        femnist.load(str(folder))


def test_writers_of_one_example_each_leave_no_test_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no writer has two examples"):
        femnist.load(str(small_femnist(tmp_path / "a", writer_id=[f"w{i}" for i in range(40)])))


X = [[0.0] * 784, [1.0] * 784]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"users": ["u"], "user_', r"all.json: this is not whole JSON"),
        ([1, 2], r"all.json: there is no user in it"),
        ({"users": [], "user_data": {}}, r"all.json: there is no user in it"),
        ({"users": ["u", "v"], "user_data": {"u": {"x": X, "y": [0, 1]}}}, r"all.json, user 'v': is not in both"),
        ({"user_data": {"u": {"x": X, "y": [0, 1]}, "v": {"x": [], "y": []}}}, r"all.json, user 'v': has no examples"),
        ({"user_data": {"u": {"x": X, "y": [0]}}}, r"all.json, user 'u': lists .* of one length"),
        ({"user_data": {"u": {"x": X}}}, r"all.json, user 'u': lists"),
        ({"user_data": {"u": 7}}, r"all.json, user 'u': lists"),
        ({"user_data": {"u": {"x": X, "y": [0, 62]}}}, r"user 'u', row 1: label 62 must be from 0 to 61"),
        ({"user_data": {"u": {"x": X, "y": [0, "a"]}}}, r"user 'u': labels must be whole numbers"),
        ({"user_data": {"u": {"x": [[0.0] * 783] * 2, "y": [0, 1]}}}, r"user 'u': its pixels have shape"),
        ({"user_data": {"u": {"x": [[0.0] * 783, [0.0]], "y": [0, 1]}}}, r"user 'u': its pixels are not rows"),
        ({"user_data": {"u": {"x": [["a"] * 784] * 2, "y": [0, 1]}}}, r"user 'u': its pixels are not rows"),
        ({"user_data": {"u": {"x": [[7.0] * 784] * 2, "y": [0, 1]}}}, r"user 'u': its pixels are not all of"),
        ({"user_data": {"u": {"x": [[0.123] * 784] * 2, "y": [0, 1]}}}, r"user 'u': its pixels are not all of"),
    ],
)
def test_wrong_json_is_named_with_file_and_user(tmp_path: Path, content: object, named: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "all.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=named):
        femnist.load(str(tmp_path / "data"))


def test_the_stand_in_has_as_many_clients_as_asked_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", image=pictures(200, 28, 28), label=[i % 62 for i in range(200)])
    write(folder, "test", image=pictures(3, 28, 28, seed=1), label=[1, 2, 3])
    data = femnist.load_skewed(str(folder), num_clients=10)
    assert data.num_clients == 10
    assert sorted(torch.cat(data.rows).tolist()) == list(range(200))
    assert data.test.targets.tolist() == [1, 2, 3]


# -------------------------------------------------------------------------------------------------- partitioners


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["iid", "dirichlet-5", "shards-1", "shards-3"]),
    st.integers(1, 6),
    st.integers(60, 90),
    st.integers(0, 5),
)
def test_every_example_has_a_client_and_every_client_an_example(how: str, clients: int, size: int, seed: int) -> None:
    labels = torch.randint(4, (size,), generator=torch.Generator().manual_seed(seed))
    found = assign(labels, how, clients, seed)
    counts = torch.bincount(found, minlength=clients)
    assert found.min() >= 0
    assert len(counts) == clients
    assert counts.min() >= 1
    assert torch.equal(found, assign(labels, how, clients, seed))
    if how == "iid":
        assert counts.max() - counts.min() <= 1


def test_shards_give_a_client_few_labels_and_leave_nothing_over() -> None:
    labels = torch.arange(1003) % 10
    found = assign(labels, "shards-2", 50, 0)
    assert all(len(labels[found == client].unique()) <= 4 for client in range(50))
    assert torch.bincount(found).sum() == 1003


def test_a_smaller_dirichlet_number_skews_more() -> None:
    labels = torch.arange(5000) % 10
    spread = [assign(labels, how, 10, 0)[labels == 0].bincount(minlength=10).float().std() for how in
              ("iid", "dirichlet-10", "dirichlet-0.3")]  # fmt: skip
    assert spread[0] < spread[1] < spread[2]


@pytest.mark.parametrize(
    "how", ["", "random", "dirichlet", "dirichlet-0", "dirichlet--1", "shards-0", "shards-1.5", "iid-2"]
)
def test_an_unknown_partition_is_refused_with_what_is_allowed(how: str) -> None:
    with pytest.raises(ValueError, match=r"partition=.* is not one of: iid, dirichlet-A .*, shards-N"):
        assign(torch.arange(10) % 2, how, 2, 0)


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
        assign(torch.arange(20) % 2, how, clients, 0)


def test_names_are_numbered_in_their_order(capsys: pytest.CaptureFixture) -> None:
    clients, names = assign_by_name(["b", "a", "c", "a"])
    assert (clients.tolist(), names) == ([1, 0, 2, 0], ["a", "b", "c"])
    assert capsys.readouterr().err == ""


# -------------------------------------------------------------------------------------------------- augmentation

CROP = CropFlip(24, mean=(0.5, 0.25, 0.1), std=(0.2, 0.3, 0.4))


def crop_literally(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Crop, mirror and normalise one image after the other."""
    tops, lefts = (torch.randint(9, (len(images),), generator=generator) for _ in range(2))
    mirrored = torch.randint(2, (len(images),), generator=generator)
    found = []
    for image, top, left, mirror in zip(images, tops, lefts, mirrored, strict=True):
        crop = torch.stack([row[:, left : left + 24] for row in image[:, top : top + 24].unbind(1)], 1) / 255
        crop = torch.stack([crop[..., 23 - i] for i in range(24)], -1) if mirror else crop
        found.append(torch.stack([(c - m) / s for c, m, s in zip(crop, CROP.mean, CROP.std, strict=True)]))
    return torch.stack(found)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 1000))
def test_augmentation_of_a_batch_equals_one_image_after_the_other(count: int, seed: int) -> None:
    images = torch.randint(256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    before = images.clone()
    found, wanted = (f(images, torch.Generator().manual_seed(seed)) for f in (CROP, crop_literally))
    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.equal(images, before)


def test_every_crop_and_both_directions_occur() -> None:
    image = torch.from_numpy(pictures(1, 32, 32)[0]).expand(4000, 3, 32, 32)
    found = CROP.random(image, torch.Generator().manual_seed(0))
    assert len({crop[0, :2].numpy().tobytes() for crop in found}) == 9 * 9 * 2


def test_tests_see_the_centre_and_nothing_random() -> None:
    images = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
    wanted = images[:, :, 4:28, 4:28] / 255 - torch.tensor(CROP.mean)[:, None, None]
    assert torch.allclose(CROP(images, None), wanted / torch.tensor(CROP.std)[:, None, None], atol=1e-5)


def test_characters_are_only_scaled() -> None:
    images = torch.randint(256, (5, 1, 28, 28), dtype=torch.uint8)
    assert torch.equal(Scale()(images, torch.Generator()), images / 255)
    assert torch.equal(Scale()(images, None), images / 255)


# ------------------------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize(
    ("name", "batch_size", "lr"),
    [("cifar10", 32, 0.1), ("femnist", 16, 0.1), ("femnist-digits", 16, 0.1), ("emnist-skewed", 16, 0.1),
     ("shakespeare", 4, 1.0)],
)  # fmt: skip
def test_recipes_have_the_numbers_of_the_papers_appendix(name: str, batch_size: int, lr: float) -> None:
    recipe = RECIPES[name]()
    assert (recipe.name, recipe.batch_size, recipe.lr) == (name, batch_size, lr)
    assert (recipe.num_rounds, recipe.cohort_size, recipe.local_epochs) == (500, 10, 1)
    assert (recipe.momentum, recipe.decay, [str(m) for m in recipe.milestones]) == (0.0, 0.1, ["1/2", "3/4"])
    assert (recipe.norms, recipe.tiers, len(recipe.widths.widths)) == ("layers", "uniform-5", 5)


def test_a_recipes_data_is_made_from_the_seed(tmp_path: Path) -> None:
    folder = str(small_femnist(tmp_path / "data"))
    same(partial(femnist.load, folder)(3), femnist.load(folder))
