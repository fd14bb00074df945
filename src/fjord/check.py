"""The door of the server: no update touches the model before every part of it is checked."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fjord.local import Task, Update

LIMIT = 1e20
"""No trained weight is as large; sums of what is below stay finite."""
MOST_EXAMPLES = 2**40


def fault_of(task: Task, update: object) -> str | None:
    """Say what is wrong with the answer to a task, or nothing."""
    if not isinstance(update, Update):
        return f"it is a {type(update).__name__}, not an update"
    if update.client_id != task.client_id:
        return f"it is the update of client {update.client_id!r}"
    if not _whole(update.num_examples) or not 0 < update.num_examples < MOST_EXAMPLES:
        return f"num_examples is {update.num_examples!r}, not a whole number above 0"
    if not isinstance(update.loss, float) or not math.isfinite(update.loss):
        return f"loss is {update.loss!r}, not a finite number"
    if not _whole(update.macs) or update.macs < 0:
        return f"macs is {update.macs!r}, not a whole number of at least 0"
    counts = _counts_fault(task, "steps", update.steps) or _counts_fault(task, "reach", update.reach)
    return counts or _tensors_fault(task, update.tensors)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counts_fault(task: Task, name: str, counts: object) -> str | None:
    if not isinstance(counts, Mapping) or not counts or not all(_whole(n) and n > 0 for n in counts.values()):
        return f"{name} is {counts!r}, not a number of steps for each width"
    strange = [width for width in counts if width not in task.space.widths]
    return f"{name} names width {strange[0]!r}, which the client does not have" if strange else None


def _tensors_fault(task: Task, tensors: object) -> str | None:
    if not isinstance(tensors, Mapping):
        return f"tensors are a {type(tensors).__name__}, not a dictionary"
    if tensors.keys() != task.tensors.keys():
        odd = sorted(map(str, tensors.keys() ^ task.tensors.keys()))
        return f"tensors missing or unknown: {', '.join(odd[:3])}{' ...' if len(odd) > 3 else ''}"
    return next(filter(None, (_tensor_fault(key, tensors[key], sent) for key, sent in task.tensors.items())), None)


def _tensor_fault(key: str, got: object, sent: Tensor) -> str | None:
    if not isinstance(got, Tensor) or got.layout != torch.strided:
        return f"{key} is not a dense tensor but a {type(got).__name__}"
    if got.shape != sent.shape:
        return f"{key} has shape {tuple(got.shape)}, sent was {tuple(sent.shape)}"
    if got.dtype != sent.dtype:
        return f"{key} is of {got.dtype}, sent was {sent.dtype}"
    if got.device != sent.device:
        return f"{key} is on {got.device}, sent was {sent.device}"
    if got.is_floating_point() and got.numel():
        low, high = got.detach().aminmax()
        if not (low >= -LIMIT and high <= LIMIT):  # false for NaN too
            return f"{key} holds values that are not finite, or beyond {LIMIT:.0e}"
    return None
