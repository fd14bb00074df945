"""Images and labels of a table, decoded into compact tensors of bytes."""

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.data.sources import import_library, open_split

ImageShape = tuple[int, int, int]
"""Channels, height and width."""

PILLOW_MODES = {1: "L", 3: "RGB"}
"""Pillow's name for pictures of one and of three channels."""


def read_images(
    source: str,
    split: str,
    columns: tuple[str, str],
    shape: ImageShape,
    num_classes: int,
) -> tuple[Tensor, Tensor]:
    """Return the images (N, C, H, W) and labels of a split, from its two columns, as bytes."""
    image_column, label_column = columns
    table = open_split(source, split, columns)
    where = f"source {source} ({split})"
    images = decode_images(table, image_column, shape, where)
    labels = read_labels(table, label_column, num_classes, where)
    return images, labels


def decode_images(
    table: Any,
    column: str,
    shape: ImageShape,
    where: str,
) -> Tensor:
    """Decode a column of images into one tensor of bytes."""
    encoded = _encoded_images(table, column, where).with_format("arrow")
    result = torch.empty((len(table), *shape), dtype=torch.uint8)
    pixels = result.numpy()
    row = 0
    for batch in encoded.iter(batch_size=1000):
        for cell in batch.column(column).to_pylist():
            try:
                pixels[row] = _decode_image(cell, shape)
            # Pillow calls a broken PNG a SyntaxError.
            except (ValueError, OSError, SyntaxError) as error:
                raise UserError(f"{where}, column {column!r}, row {row}: {error}") from error
            row += 1
    return result


def _encoded_images(table: Any, column: str, where: str) -> Any:
    """Return a column of images as files, not decoded."""
    datasets = import_library("datasets")
    arrow = import_library("pyarrow")
    try:
        images = table.select_columns([column])
        return images.cast_column(column, datasets.Image(decode=False))
    except (TypeError, ValueError, arrow.ArrowException) as error:
        fault = f"column {column!r} holds {table.features[column]}, not images"
        raise UserError(f"{where}: {fault}") from error


def _decode_image(cell: dict[str, Any] | None, shape: ImageShape) -> np.ndarray[Any, Any]:
    """Return one image as (channels, height, width)."""
    channels, height, width = shape
    picture = _open_image(cell)
    mode = PILLOW_MODES[channels]
    if picture.mode != mode or picture.size != (width, height):
        given_width, given_height = picture.size
        given = f"{picture.mode} of {given_width}x{given_height}"
        needed = f"{mode} of {width}x{height}"
        raise UserError(f"the image is {given}; it must be {needed}")
    pixels = np.asarray(picture).reshape(height, width, channels)
    return pixels.transpose(2, 0, 1)


def _open_image(cell: dict[str, Any] | None) -> Any:
    """Open an image with Pillow: the bytes of a cell, or the file it names."""
    if cell is None or (cell["bytes"] is None and cell["path"] is None):
        raise UserError("there is no image")
    file = cell["path"]
    if cell["bytes"] is not None:
        file = io.BytesIO(cell["bytes"])
    pillow = import_library("PIL.Image")
    try:
        return pillow.open(file)
    except pillow.UnidentifiedImageError:
        raise UserError("this is not an image of a known format") from None


def read_labels(
    table: Any,
    column: str,
    num_classes: int,
    where: str,
) -> Tensor:
    """Return a column of labels as bytes."""
    labels = table.select_columns([column]).with_format("arrow")
    values = labels[:].column(0)
    column_name = f"{where}, column {column!r}"
    if values.null_count:
        row = values.is_null().to_pylist().index(True)
        raise UserError(f"{column_name}, row {row}: there is no label")
    return as_labels(values.to_numpy(), num_classes, column_name)


def as_labels(
    values: np.ndarray[Any, Any],
    num_classes: int,
    where: str,
) -> Tensor:
    """Return labels as bytes, checked to be class numbers."""
    allowed = f"from 0 to {num_classes - 1}"
    if not np.issubdtype(values.dtype, np.integer):
        raise UserError(f"{where}: labels must be whole numbers {allowed}, not {values.dtype}")
    invalid_rows = np.flatnonzero((values < 0) | (values >= num_classes))
    if len(invalid_rows):
        row = invalid_rows[0]
        label = values[row]
        raise UserError(f"{where}, row {row}: label {label} must be {allowed}")
    return torch.from_numpy(values.astype(np.uint8))
