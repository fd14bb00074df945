"""CIFAR10 on small folders: read as it is, partitioned by the seed, decoded once."""

from collections.abc import Callable
from pathlib import Path

import commands
import pytest
import torch
from folders import as_bytes, needs, pictures, small_cifar, write
from folders import own_folders as own_folders  # an autouse fixture
from real_data import ROWS, column, image_at

from fjord.data import cifar10, femnist
from fjord.data.sources import open_split


def test_a_small_folder_is_read_as_it_is(tmp_path: Path) -> None:
    folder = small_cifar(tmp_path / "data")
    data = cifar10.load(str(folder), num_clients=8)
    assert [len(rows) for rows in data.rows] == [5] * 8
    assert [image.numpy().tobytes() for image in data.inputs] == [
        as_bytes(i) for i in pictures(40, 32, 32, 3)
    ]
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
    rows = [
        torch.cat(cifar10.load(folder, seed, num_clients=8).rows).tolist() for seed in (0, 0, 1)
    ]
    assert rows[0] == rows[1] != rows[2]
    assert (
        torch.cat(cifar10.load(folder, partition="shards-1", num_clients=10).rows).tolist()
        != rows[0]
    )


def test_a_changed_source_is_decoded_anew(tmp_path: Path) -> None:
    folder = small_cifar(tmp_path / "data")
    cifar10.load(str(folder), num_clients=8)
    small_cifar(folder, label=[9 - i % 10 for i in range(40)])
    assert cifar10.load(str(folder), num_clients=8).targets[:3].tolist() == [9, 8, 7]


def test_nothing_is_left_of_what_datasets_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    table = open_split(str(small_cifar(tmp_path / "data")), "train", ["img", "label"])
    assert list((tmp_path / "temporary").iterdir()) == []
    assert table[39]["label"] == 9


@needs("cifar10")
def test_cifar10_is_the_source_in_100_clients_of_500(decoded: Path) -> None:
    data = cifar10.load()
    assert [len(rows) for rows in data.rows] == [500] * 100
    assert sorted(torch.cat(data.rows).tolist()) == list(range(50_000))
    for split, (inputs, targets) in {
        "train": data.all_examples(),
        "test": (data.test.inputs, data.test.targets),
    }.items():
        assert targets.tolist() == column("cifar10", split, "label")
        assert [inputs[row].numpy().tobytes() for row in ROWS] == image_at(
            "cifar10", split, "img", ROWS
        )
    assert data.test.owners.eq(-1).all()
    assert data.inputs.dtype == torch.uint8
    assert torch.allclose(
        data.inputs.float().mean((0, 2, 3)) / 255, torch.tensor(cifar10.PREPARE.mean), atol=1e-4
    )
    assert torch.allclose(
        data.inputs.float().std((0, 2, 3)) / 255, torch.tensor(cifar10.PREPARE.std), atol=1e-4
    )


SECOND = """
import sys, time
import fjord.data.cifar10, fjord.data.femnist
data = {}()
assert not {{"datasets", "flwr_datasets", "PIL", "pyarrow"}} & sys.modules.keys()
"""


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(cifar10.load, marks=needs("cifar10")),
        pytest.param(femnist.load_digits, marks=needs("femnist_digits")),
        pytest.param(femnist.load_skewed, marks=needs("emnist_byclass")),
    ],
)
def test_a_second_start_needs_none_of_the_libraries(decoded: Path, load: Callable) -> None:
    load()
    call = f"{load.__module__}.{load.__name__}"
    assert commands.Python("-c", SECOND.format(call)).wait() == 0
