"""Small folders of the layouts that datasets come in, where real ones are, and what is read from them."""

import os
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from fjord.data.federated import PartitionedData

DATA = os.environ.get("FJORD_DATA", "")
FEATURES = {"img": datasets.Image(), "image": datasets.Image()}


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not (Path(DATA or "-") / name).is_dir(), reason=f"FJORD_DATA has no folder {name}"
    )


def pictures(count: int, *shape: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8))


def write(
    folder: Path, split: str = "train", part: str = "00000-of-00001", **columns: list
) -> Path:
    """Write a split as hubs do, a parquet file with images in it."""
    folder.mkdir(exist_ok=True)
    kinds = {
        name: FEATURES.get(name) or datasets.Value(kind(values)) for name, values in columns.items()
    }
    images = {
        n: [Image.fromarray(i) if isinstance(i, np.ndarray) else i for i in columns[n]]
        for n in columns.keys() & FEATURES
    }
    table = datasets.Dataset.from_dict({**columns, **images}, features=datasets.Features(kinds))
    table.to_parquet(folder / f"{split}-{part}.parquet")
    return folder


def kind(values: list) -> str:
    return {str: "string", float: "float64"}.get(type(values[0]), "int64")


def small_cifar(folder: Path, **changed: list) -> Path:
    whole = {"img": pictures(40, 32, 32, 3), "label": [i % 10 for i in range(40)]}
    write(folder, "test", img=pictures(6, 32, 32, 3, seed=1), label=[5, 4, 3, 2, 1, 0])
    return write(folder, **(whole | changed))


WRITERS = ["b"] * 25 + ["a"] * 12 + ["c"] * 2 + ["d"]
LETTERS = [i % 62 for i in range(40)]


def small_femnist(folder: Path, split: str = "train", **changed: list) -> Path:
    whole = {
        "image": pictures(40, 28, 28),
        "character": LETTERS,
        "writer_id": WRITERS,
        "hsf_id": [0] * 40,
    }
    return write(folder, split, **(whole | changed))


@pytest.fixture(autouse=True)
def own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    real = "decoded" in request.fixturenames
    monkeypatch.setenv(
        "FJORD_CACHE", str(request.getfixturevalue("decoded") if real else tmp_path / "cache")
    )
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    if not real:
        monkeypatch.delenv("FJORD_DATA", raising=False)


def pixels(data: PartitionedData, client: int) -> list[bytes]:
    return sorted(image.numpy().tobytes() for image in data.examples(client)[0])


def as_bytes(image: np.ndarray) -> bytes:
    return (image if image.ndim == 2 else image.transpose(2, 0, 1)).tobytes()
