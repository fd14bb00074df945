"""The door of the server: no update touches the model before every part of it is checked."""

import reprlib
from collections.abc import Mapping

import torch
from torch import Tensor

from fjord.core.width import Width
from fjord.training.local import Assignment, ClientUpdate, Fallbacks, Reduction

LIMIT = 1e18
"""No trained weight and no loss is as large; sums and squares of what is below stay finite."""
MOST_EXAMPLES = 2**40
MOST_STEPS = 2**20
MOST_MACS = 2**62
MOST_WORDS = 200


def validate_reply(task: Assignment, update: object, parts: Fallbacks) -> Assignment | str:
    """Return the task that an update answers, a smaller one if its client says so, or what is wrong with it."""
    reduced = getattr(update, "reduced", None)
    if not isinstance(update, ClientUpdate) or reduced is None:
        return find_fault(task, update) or task
    if not isinstance(reduced, Reduction) or type(reduced.ceiling) is not Width:
        return f"reduced is {_shown(reduced)}, not a ceiling and a reason"
    if (
        not isinstance(reduced.why, str)
        or not reduced.why.isprintable()
        or len(reduced.why) > MOST_WORDS
    ):
        return f"its reason for training less is {_shown(reduced.why)}, not a line of at most {MOST_WORDS} characters"
    smaller = parts.smaller(task, reduced.ceiling)
    if smaller is None:
        return f"it trained up to width {_shown(reduced.ceiling)}, which is no smaller part of what it was sent"
    return find_fault(smaller, update) or smaller


def find_fault(task: Assignment, update: object) -> str | None:
    """Say what is wrong with the answer to a task, or nothing."""
    if not isinstance(update, ClientUpdate):
        return f"it is a {type(update).__name__}, not an update"
    if not _whole(update.client_id, 0, 2**62) or update.client_id != task.client_id:
        return f"it is the update of client {_shown(update.client_id)}"
    if not _whole(update.num_examples, 1, MOST_EXAMPLES):
        return f"num_examples is {_shown(update.num_examples)}, not a whole number from 1 to {MOST_EXAMPLES}"
    if not isinstance(update.loss, float) or not abs(update.loss) < LIMIT:
        return f"loss is {_shown(update.loss)}, not a finite number"
    if not _whole(update.macs, 0, MOST_MACS):
        return f"macs is {_shown(update.macs)}, not a whole number of at least 0"
    counts = _counts_fault(task, "steps", update.steps) or _counts_fault(
        task, "reach", update.reach
    )
    return counts or _tensors_fault(task, update.tensors)


def _whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _shown(value: object) -> str:
    """Return a value in few words, whatever it is."""
    return "a huge number" if isinstance(value, int) and abs(value) > 2**64 else reprlib.repr(value)


def _counts_fault(task: Assignment, name: str, counts: object) -> str | None:
    if (
        not isinstance(counts, Mapping)
        or not counts
        or not all(_whole(n, 1, MOST_STEPS) for n in counts.values())
    ):
        return f"{name} is not a number of steps from 1 to {MOST_STEPS} for each width"
    strange = [
        width for width in counts if type(width) is not Width or width not in task.space.widths
    ]
    return (
        f"{name} names width {_shown(strange[0])}, which the client does not have"
        if strange
        else None
    )


def _tensors_fault(task: Assignment, tensors: object) -> str | None:
    if not isinstance(tensors, Mapping):
        return f"tensors are a {type(tensors).__name__}, not a dictionary"
    if tensors.keys() != task.tensors.keys():
        odd = sorted(map(str, tensors.keys() ^ task.tensors.keys()))
        return f"tensors missing or unknown: {', '.join(odd[:3])}{' ...' if len(odd) > 3 else ''}"
    fault = next(
        filter(
            None, (_tensor_fault(key, tensors[key], sent) for key, sent in task.tensors.items())
        ),
        None,
    )
    return fault or _value_fault(tensors, task.tensors)


def _tensor_fault(key: str, got: object, sent: Tensor) -> str | None:
    if (
        not isinstance(got, Tensor)
        or got.layout != torch.strided
        or got.is_nested
        or got.requires_grad
    ):
        return f"{key} is not a dense tensor without a graph but a {type(got).__name__}"
    if got.shape != sent.shape:
        return f"{key} has shape {tuple(got.shape)}, sent was {tuple(sent.shape)}"
    if got.dtype != sent.dtype:
        return f"{key} is of {got.dtype}, sent was {sent.dtype}"
    if got.device != sent.device:
        return f"{key} is on {got.device}, sent was {sent.device}"
    return None


def _value_fault(tensors: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> str | None:
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            flat = tensor.reshape(-1)
            if (
                torch.dot(flat, flat) <= LIMIT**2
            ):  # one fast pass; false for NaN, and for what is worth a closer look
                continue
            low, high = tensor.aminmax()
            if not (low >= -LIMIT and high <= LIMIT) and not torch.equal(
                tensor, sent[key]
            ):  # a mask of -inf may stay
                return f"{key} holds values that are not finite, or beyond {LIMIT:.0e}"
    return None
