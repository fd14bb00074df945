"""What the files of real data hold, read without any of the code under test."""

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from folders import DATA, as_bytes
from PIL import Image


def column(name: str, split: str, wanted: str) -> list:
    """Read a column of the source without any of the code under test."""
    (file,) = (Path(DATA) / name).glob(f"{split}-*.parquet")
    return pq.read_table(file, columns=[wanted])[wanted].to_pylist()


def image_at(name: str, split: str, wanted: str, rows: list[int]) -> list[bytes]:
    cells = column(name, split, wanted)
    return [as_bytes(np.asarray(Image.open(io.BytesIO(cells[row]["bytes"])))) for row in rows]


ROWS = [0, 1, 777, 4999, 9999]
