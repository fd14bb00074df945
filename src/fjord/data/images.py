"""Images and labels of a table, decoded into compact tensors of bytes."""

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.data.sources import import_library, open_split

MODES = {1: "L", 3: "RGB"}
"""Pillow's name for pictures of one and of three channels."""


def read_images(
    source: str, split: str, columns: tuple[str, str], shape: tuple[int, int, int], num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return the images (N, C, H, W) and labels of a split, from its columns of each, as bytes."""
    table = open_split(source, split, columns)
    where = f"source {source} ({split})"
    return decode_images(table, columns[0], shape, where), read_labels(
        table, columns[1], num_classes, where
    )


def decode_images(table: Any, column: str, shape: tuple[int, int, int], where: str) -> Tensor:
    """Decode a column of images into one tensor of bytes."""
    arrow = _encoded(table, column, where).with_format("arrow")
    result = torch.empty((len(table), *shape), dtype=torch.uint8)
    pixels, row = result.numpy(), 0
    for batch in arrow.iter(batch_size=1000):
        for cell in batch.column(column).to_pylist():
            try:
                pixels[row] = _decoded(cell, shape)
            except (
                ValueError,
                OSError,
                SyntaxError,
            ) as error:  # Pillow calls a broken PNG a SyntaxError
                raise UserError(f"{where}, column {column!r}, row {row}: {error}") from error
            row += 1
    return result


def _encoded(table: Any, column: str, where: str) -> Any:
    datasets, arrow = import_library("datasets"), import_library("pyarrow")
    try:
        return table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    except (TypeError, ValueError, arrow.ArrowException) as error:
        raise UserError(
            f"{where}: column {column!r} holds {table.features[column]}, not images"
        ) from error


def _decoded(cell: dict[str, Any] | None, shape: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    """Return one image as (channels, height, width)."""
    if cell is None or (cell["bytes"] is None and cell["path"] is None):
        raise UserError("there is no image")
    pillow = import_library("PIL.Image")
    try:
        picture = pillow.open(cell["path"] if cell["bytes"] is None else io.BytesIO(cell["bytes"]))
    except pillow.UnidentifiedImageError:
        raise UserError("this is not an image of a known format") from None
    channels, height, width = shape
    if picture.mode != MODES[channels] or picture.size != (width, height):
        given = f"{picture.mode} of {picture.size[0]}x{picture.size[1]}"
        raise UserError(f"the image is {given}; it must be {MODES[channels]} of {width}x{height}")
    return np.asarray(picture).reshape(height, width, channels).transpose(2, 0, 1)


def read_labels(table: Any, column: str, num_classes: int, where: str) -> Tensor:
    """Return a column of labels as bytes."""
    values = table.select_columns([column]).with_format("arrow")[:].column(0)
    if values.null_count:
        row = values.is_null().to_pylist().index(True)
        raise UserError(f"{where}, column {column!r}, row {row}: there is no label")
    return as_labels(values.to_numpy(), num_classes, f"{where}, column {column!r}")


def as_labels(values: np.ndarray[Any, Any], num_classes: int, where: str) -> Tensor:
    """Return labels as bytes."""
    if not np.issubdtype(values.dtype, np.integer):
        raise UserError(
            f"{where}: labels must be whole numbers from 0 to {num_classes - 1}, not {values.dtype}"
        )
    wrong = np.flatnonzero((values < 0) | (values >= num_classes))
    if len(wrong):
        row, allowed = wrong[0], f"from 0 to {num_classes - 1}"
        raise UserError(f"{where}, row {row}: label {values[row]} must be {allowed}")
    return torch.from_numpy(values.astype(np.uint8))
