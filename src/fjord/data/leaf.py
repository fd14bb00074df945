"""Characters with their writers in LEAF's JSON: users, and for each the pixels x (from 0 to 1) and labels y."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.data.images import as_labels

SIDE = 28


@dataclass(frozen=True)
class LeafImages:
    """Characters (N, 1, 28, 28) and their labels in bytes, and who wrote each."""

    images: Tensor
    labels: Tensor
    writers: list[str]


def leaf_folders(folder: Path) -> list[Path]:
    """Return the folders of LEAF's JSON files: train and test, or one without a split, or none."""
    if any((folder / "train").glob("*.json")):
        return [folder / "train", folder / "test"]
    return [folder] if any(folder.glob("*.json")) and not any(folder.rglob("*.parquet")) else []


def read_leaf(folder: Path, num_classes: int) -> LeafImages:
    """Read all users of the files in a folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"{folder}: there are no .json files in it")
    found = [
        (user, *_decoded(x, y, num_classes, where))
        for file in files
        for user, x, y, where in leaf_users(file)
    ]
    users, images, labels = zip(*found, strict=True)
    writers = [user for user, own in zip(users, labels, strict=True) for _ in own]
    return LeafImages(torch.cat(images), torch.cat(labels), writers)


def leaf_users(file: Path) -> Iterator[tuple[str, list[Any], list[Any], str]]:
    """Yield the name, x and y of each user, and the words that name it in an error."""
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{file}: this is not whole JSON, it may have been cut short ({error})"
        ) from error
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(data, dict) or not data:
        raise UserError(f'{file}: there is no user in it; LEAF\'s JSON has "users" and "user_data"')
    users = content.get("users", list(data))
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise UserError(f'{file}: "users" must be a list of names, not {users!r}')
    if unlike := sorted(set(users) ^ set(data)):
        raise UserError(f'{file}, user {unlike[0]!r}: is not in both "users" and "user_data"')
    for user, own in data.items():
        x, y = (own.get("x"), own.get("y")) if isinstance(own, dict) else (None, None)
        where = f"{file}, user {user!r}"
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise UserError(f'{where}: lists "x" and "y" of one length are needed')
        if not y:
            raise UserError(f"{where}: has no examples")
        yield user, x, y, where


def _decoded(x: list[Any], y: list[Any], num_classes: int, where: str) -> tuple[Tensor, Tensor]:
    """Return the images and labels of one user."""
    try:
        pixels, labels = np.asarray(x, float) * 255, np.asarray(y)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{where}: its pixels are not rows of {SIDE * SIDE} numbers ({error})"
        ) from error
    if pixels.shape[1:] != (SIDE * SIDE,) or labels.ndim != 1:
        raise UserError(
            f"{where}: its pixels have shape {pixels.shape}, not {(len(labels), SIDE * SIDE)}"
        )
    nearest = pixels.round()
    if not (np.abs(pixels - nearest).max() < 0.05 and nearest.min() >= 0 and nearest.max() <= 255):
        raise UserError(f"{where}: its pixels are not all of the form n/255 with n from 0 to 255")
    images = torch.from_numpy(nearest.astype(np.uint8)).reshape(-1, 1, SIDE, SIDE)
    return images, as_labels(labels, num_classes, where)
