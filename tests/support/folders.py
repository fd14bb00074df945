"""Small folders of the layouts that datasets come in, and where the real ones are."""

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
    features = {}
    cells = {}
    for name, values in columns.items():
        features[name] = FEATURES.get(name) or datasets.Value(kind(values))
        cells[name] = values
        if name in FEATURES:
            cells[name] = [as_image(value) for value in values]
    table = datasets.Dataset.from_dict(cells, features=datasets.Features(features))
    table.to_parquet(folder / f"{split}-{part}.parquet")
    return folder


def as_image(value: object) -> object:
    """Return an array as an image; what is not an array stays as it is."""
    return Image.fromarray(value) if isinstance(value, np.ndarray) else value


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
    cache = tmp_path / "cache"
    if "decoded" in request.fixturenames:
        cache = request.getfixturevalue("decoded")
    else:
        monkeypatch.delenv("FJORD_DATA", raising=False)
    monkeypatch.setenv("FJORD_CACHE", str(cache))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))


def pixels(data: PartitionedData, client: int) -> list[bytes]:
    return sorted(image.numpy().tobytes() for image in data.examples(client)[0])


def as_bytes(image: np.ndarray) -> bytes:
    if image.ndim == 3:
        image = image.transpose(2, 0, 1)
    return image.tobytes()


def moved_over(line: str) -> list[tuple[str, str]]:
    """Return the windows that LEAF makes of a line."""
    padded = " " * 80 + line
    return [(padded[i : i + 80], padded[i + 80]) for i in range(len(line))]
