"""The loaders of images on real data, where FJORD_DATA has it, and in the recipes."""

import io
from collections import Counter
from pathlib import Path

import commands
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from folders import DATA, as_bytes, needs, own_folders, pictures, pixels, small_cifar, write  # noqa: F401
from PIL import Image

from fjord.data import cifar10, femnist
from fjord.experiments.recipes.paper import RECIPES

# ---------------------------------------------------------------------------------------- real data


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


# ------------------------------------------------------------------------------------------ recipes


@pytest.mark.parametrize(
    ("name", "batch_size", "lr"),
    [
        ("cifar10", 32, 0.1),
        ("femnist", 16, 0.1),
        ("femnist-digits", 16, 0.1),
        ("emnist-skewed", 16, 0.1),
        ("shakespeare", 4, 1.0),
    ],
)
def test_recipes_have_the_numbers_of_the_papers_appendix(
    name: str, batch_size: int, lr: float
) -> None:
    recipe = RECIPES[name]()
    assert (recipe.name, recipe.batch_size, recipe.lr) == (name, batch_size, lr)
    assert (recipe.num_rounds, recipe.cohort_size, recipe.local_epochs) == (500, 10, 1)
    assert (recipe.momentum, recipe.decay, [str(m) for m in recipe.milestones]) == (
        0.0,
        0.1,
        ["1/2", "3/4"],
    )
    assert (recipe.norms, recipe.tiers, len(recipe.widths.widths)) == ("layers", "uniform-5", 5)
