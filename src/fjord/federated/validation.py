"""Validation of client updates: none touches the model before every part of it is checked."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fjord.core.width import Width
from fjord.training.assignment import Assignment, ClientUpdate, Fallbacks, Reduction, Rejected

LIMIT = 1e18
"""No trained weight and no loss is as large; sums and squares of smaller values stay finite."""
MAX_CLIENT_ID = 2**62
MAX_EXAMPLES = 2**40
MAX_STEPS = 2**20
MAX_MACS = 2**62
MAX_REASON_LENGTH = 200
SHOWN_KEYS = 3
"""How many missing or unknown tensors a message names."""


@dataclass(frozen=True)
class AcceptedUpdate:
    """A valid update, with the assignment that was sent and the one that was trained."""

    sent: Assignment
    trained: Assignment
    """The assignment that was sent, or the smaller one within it that the client fell back to."""
    update: ClientUpdate


def validate_reply(
    sent: Assignment, reply: object, fallbacks: Fallbacks
) -> AcceptedUpdate | Rejected:
    """Accept a reply to an assignment, or say what is wrong with it."""
    if isinstance(reply, AcceptedUpdate | Rejected):
        return reply
    trained: Assignment | Rejected = sent
    if isinstance(reply, ClientUpdate):
        trained = _trained_assignment(sent, reply.reduction, fallbacks)
    if isinstance(trained, Rejected):
        return trained
    fault = find_fault(trained, reply)
    if fault is not None:
        return Rejected(fault)
    assert isinstance(reply, ClientUpdate)
    return AcceptedUpdate(sent, trained, reply)


def _trained_assignment(
    sent: Assignment, reduction: object, fallbacks: Fallbacks
) -> Assignment | Rejected:
    """Return the assignment that a client says it has trained."""
    if reduction is None:
        return sent
    if not isinstance(reduction, Reduction) or type(reduction.ceiling) is not Width:
        return Rejected(f"reduction is {_short(reduction)}, not a ceiling and a reason")
    if not _is_short_line(reduction.reason):
        return Rejected(
            f"its reason for training less is {_short(reduction.reason)}, "
            f"not a line of at most {MAX_REASON_LENGTH} characters"
        )
    smaller = fallbacks.at_ceiling(sent, reduction.ceiling)
    if smaller is None:
        return Rejected(
            f"it trained up to width {_short(reduction.ceiling)}, "
            "which is no smaller part of what it was sent"
        )
    return smaller


def find_fault(assignment: Assignment, update: object) -> str | None:
    """Say what is wrong with the update of an assignment, or nothing."""
    if not isinstance(update, ClientUpdate):
        return f"it is a {type(update).__name__}, not an update"
    if not _is_whole(update.client_id, 0, MAX_CLIENT_ID):
        return f"it is the update of client {_short(update.client_id)}"
    if update.client_id != assignment.client_id:
        return f"it is the update of client {_short(update.client_id)}"
    if not _is_whole(update.num_examples, 1, MAX_EXAMPLES):
        shown = _short(update.num_examples)
        return f"num_examples is {shown}, not a whole number from 1 to {MAX_EXAMPLES}"
    if not isinstance(update.loss, float) or not abs(update.loss) < LIMIT:
        return f"loss is {_short(update.loss)}, not a finite number"
    if not _is_whole(update.macs, 0, MAX_MACS):
        return f"macs is {_short(update.macs)}, not a whole number of at least 0"
    return (
        _find_count_fault(assignment, "steps", update.steps)
        or _find_count_fault(assignment, "widest_steps", update.widest_steps)
        or _find_tensors_fault(assignment, update.tensors)
    )


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_short_line(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text) <= MAX_REASON_LENGTH


def _short(value: object) -> str:
    """Return a value in few words, whatever it is."""
    if isinstance(value, int) and abs(value) > 2**64:
        return "a huge number"
    return reprlib.repr(value)


def _find_count_fault(assignment: Assignment, name: str, counts: object) -> str | None:
    allowed = f"{name} is not a number of steps from 1 to {MAX_STEPS} for each width"
    if not isinstance(counts, Mapping) or not counts:
        return allowed
    for count in counts.values():
        if not _is_whole(count, 1, MAX_STEPS):
            return allowed
    for width in counts:
        if type(width) is not Width or width not in assignment.space.widths:
            return f"{name} names width {_short(width)}, which the client does not have"
    return None


def _find_tensors_fault(assignment: Assignment, tensors: object) -> str | None:
    if not isinstance(tensors, Mapping):
        return f"tensors are a {type(tensors).__name__}, not a dictionary"
    sent = assignment.tensors
    if tensors.keys() != sent.keys():
        odd = sorted(map(str, tensors.keys() ^ sent.keys()))
        more = " ..." if len(odd) > SHOWN_KEYS else ""
        return f"tensors missing or unknown: {', '.join(odd[:SHOWN_KEYS])}{more}"
    for key, expected in sent.items():
        fault = _find_tensor_fault(key, tensors[key], expected)
        if fault is not None:
            return fault
    return _find_value_fault(tensors, sent)


def _find_tensor_fault(key: str, value: object, sent: Tensor) -> str | None:
    if not isinstance(value, Tensor) or not _is_plain(value):
        return f"{key} is not a dense tensor without a graph but a {type(value).__name__}"
    if value.shape != sent.shape:
        return f"{key} has shape {tuple(value.shape)}, sent was {tuple(sent.shape)}"
    if value.dtype != sent.dtype:
        return f"{key} is of {value.dtype}, sent was {sent.dtype}"
    if value.device != sent.device:
        return f"{key} is on {value.device}, sent was {sent.device}"
    return None


def _is_plain(tensor: Tensor) -> bool:
    dense = tensor.layout == torch.strided and not tensor.is_nested
    return dense and not tensor.requires_grad


def _find_value_fault(tensors: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> str | None:
    for key, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        flat = tensor.reshape(-1)
        # One fast pass; it is false for NaN, and for what is worth a closer look.
        if torch.dot(flat, flat) <= LIMIT**2:
            continue
        low, high = tensor.aminmax()
        within_limits = low >= -LIMIT and high <= LIMIT
        # A mask of -inf that was sent may come back as it was.
        if not within_limits and not torch.equal(tensor, sent[key]):
            return f"{key} holds values that are not finite, or beyond {LIMIT:.0e}"
    return None
