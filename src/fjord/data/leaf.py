"""LEAF's JSON: users, and for each a list x of inputs and a list y of targets.

Images are characters with their writers: x holds the pixels (from 0 to 1) and y the labels.
"""

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
NUM_PIXELS = SIDE * SIDE


@dataclass(frozen=True)
class LeafImages:
    """Characters (N, 1, 28, 28) and their labels in bytes, and who wrote each."""

    images: Tensor
    labels: Tensor
    writers: list[str]


@dataclass(frozen=True)
class LeafUser:
    """What a file holds of one user; `where` names the user in errors."""

    name: str
    x: list[Any]
    y: list[Any]
    where: str


def leaf_folders(folder: Path) -> list[Path]:
    """Return the folders of LEAF's JSON files: train and test, or one without a split, or none."""
    if any((folder / "train").glob("*.json")):
        return [folder / "train", folder / "test"]
    has_json = any(folder.glob("*.json"))
    if has_json and not any(folder.rglob("*.parquet")):
        return [folder]
    return []


def read_leaf(folder: Path, num_classes: int) -> LeafImages:
    """Read the images of all users of the files in a folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"{folder}: there are no .json files in it")
    all_images = []
    all_labels = []
    writers = []
    for file in files:
        for user in leaf_users(file):
            images, labels = _decode_user(user, num_classes)
            all_images.append(images)
            all_labels.append(labels)
            writers += [user.name] * len(labels)
    return LeafImages(torch.cat(all_images), torch.cat(all_labels), writers)


def leaf_users(file: Path) -> Iterator[LeafUser]:
    """Yield the users of a file."""
    for name, examples in _read_user_data(file).items():
        x = None
        y = None
        if isinstance(examples, dict):
            x = examples.get("x")
            y = examples.get("y")
        where = f"{file}, user {name!r}"
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise UserError(f'{where}: lists "x" and "y" of one length are needed')
        if not y:
            raise UserError(f"{where}: has no examples")
        yield LeafUser(name, x, y, where)


def _read_user_data(file: Path) -> dict[str, Any]:
    """Return what a file holds of each user, checked against its list of users."""
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file}: not complete JSON, it may be truncated ({error})") from error
    data = None
    if isinstance(content, dict):
        data = content.get("user_data")
    if not isinstance(data, dict) or not data:
        raise UserError(f'{file}: there is no user in it; LEAF\'s JSON has "users" and "user_data"')
    users = content.get("users", list(data))
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise UserError(f'{file}: "users" must be a list of names, not {users!r}')
    in_one_only = sorted(set(users) ^ set(data))
    if in_one_only:
        raise UserError(f'{file}, user {in_one_only[0]!r}: is not in both "users" and "user_data"')
    return data


def _decode_user(user: LeafUser, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of one user."""
    try:
        pixels = np.asarray(user.x, float) * 255
        labels = np.asarray(user.y)
    except (ValueError, TypeError) as error:
        fault = f"its pixels are not rows of {NUM_PIXELS} numbers ({error})"
        raise UserError(f"{user.where}: {fault}") from error
    if pixels.shape[1:] != (NUM_PIXELS,) or labels.ndim != 1:
        needed = (len(labels), NUM_PIXELS)
        raise UserError(f"{user.where}: its pixels have shape {pixels.shape}, not {needed}")
    rounded = pixels.round()
    is_exact = np.abs(pixels - rounded).max() < 0.05
    if not (is_exact and rounded.min() >= 0 and rounded.max() <= 255):
        fault = "its pixels are not all of the form n/255 with n from 0 to 255"
        raise UserError(f"{user.where}: {fault}")
    images = torch.from_numpy(rounded.astype(np.uint8)).reshape(
        -1,
        1,
        SIDE,
        SIDE,
    )
    return images, as_labels(labels, num_classes, user.where)
