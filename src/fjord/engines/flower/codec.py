"""Tasks and updates as Flower records: all tensors of a slice as one run of bytes, the rest as a line of JSON.

Both sides know the model, so neither names nor shapes travel: they follow from the units held and the widths.
"""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthSpace, parse_width
from fjord.elastic.client_model import SliceIndex
from fjord.elastic.indexing import AxisIndices, is_leading
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.training.local import Assignment, ClientUpdate, Fallbacks, Reduction

Like = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""The shapes and kinds of some tensors."""
INLINE = 2**20


def encode_task(task: Assignment, plan: WidthPlan, order: Mapping[str, Any]) -> RecordDict:
    """Return what a client is sent; `order` says what experiment it belongs to."""
    head: dict[str, Any] = {
        "client": task.client_id,
        "round": task.round_index,
        "lr": task.lr,
        **order,
    }
    pairs = zip(task.space.widths, task.space.probabilities, strict=True)
    head["widths"] = ",".join(f"{width}:{share}" for width, share in pairs)
    if all(map(is_leading, task.held.values())):
        head["counts"] = [len(units) for units in task.held.values()]
    else:
        head["mask"] = b64encode(_mask(plan, task.held)).decode()
    blocks = {
        "slice": _flat(task.tensors),
        **({"correction": _flat(task.correction)} if task.correction else {}),
    }
    return pack_content(head, blocks)


def decode_task(
    head: Mapping[str, Any], blocks: Mapping[str, bytes], model: ElasticModel, places: SliceIndex
) -> Assignment:
    """Return the task that was sent and unpacked; `places` says where a slice lies in the model."""
    space = _space(head["widths"])
    held = _held(model.plan, head)
    like = {
        key: (_cut_shape(model.tensors[key], indices), model.tensors[key].dtype)
        for key, indices in places(held, space.widths).items()
    }
    trained = {
        key: kind for key, kind in like.items() if isinstance(model.tensors[key], nn.Parameter)
    }
    return Assignment(
        client_id=head["client"],
        round_index=head["round"],
        lr=head["lr"],
        held=held,
        space=space,
        tensors=_unflat(blocks["slice"], like),
        correction=_unflat(blocks["correction"], trained) if "correction" in blocks else {},
    )


def encode_update(task: Assignment, update: ClientUpdate) -> RecordDict:
    """Return what a client sends back; the task is the smaller one if the client trained less than it was sent."""
    head: dict[str, Any] = {
        "client": update.client_id,
        "round": task.round_index,
        "examples": update.num_examples,
        "loss": update.loss,
        "macs": update.macs,
        "steps": [update.steps.get(w, 0) for w in task.space.widths],
        "reach": [update.reach.get(w, 0) for w in task.space.widths],
    }
    if update.reduced:
        head |= {"ceiling": str(update.reduced.ceiling), "why": update.reduced.why}
    return pack_content(head, {"slice": _flat({key: update.tensors[key] for key in task.tensors})})


def decode_update(task: Assignment, content: RecordDict, parts: Fallbacks) -> ClientUpdate | str:
    """Return the answer to a task, or what is wrong with it; nothing that a client sends raises an error here."""
    try:
        head, blocks = unpack_content(content)
        if head["round"] != task.round_index:
            return f"it answers round {head['round']!r:.40}"
        reduced = _reduced(head)
        if reduced and (smaller := parts.smaller(task, reduced.ceiling)) is not None:
            task = smaller  # if there is none, the door will say so
        like = {key: (tuple(t.shape), t.dtype) for key, t in task.tensors.items()}
        return ClientUpdate(
            client_id=head["client"],
            tensors=_unflat(blocks["slice"], like),
            num_examples=head["examples"],
            loss=head["loss"],
            steps=_by_width(task.space, head["steps"]),
            reach=_by_width(task.space, head["reach"]),
            macs=head["macs"],
            reduced=reduced,
        )
    except KeyError as error:
        return f"it has no {str(error.args[0])[:40]!r}"
    except (ValueError, TypeError, RecursionError) as error:
        return str(error)[:300]


def _reduced(head: Mapping[str, Any]) -> Reduction | None:
    return (
        Reduction(parse_width(str(head["ceiling"])[:40]), head["why"])
        if "ceiling" in head
        else None
    )


def pack_content(head: Mapping[str, Any], blocks: Mapping[str, bytes]) -> RecordDict:
    """Return a message's content.

    Blocks up to INLINE travel beside the head. As an Array each would be three objects more, with a request and 150
    bytes for each, which is 3% of the smallest slices; larger ones have to be Arrays, which Flower sends in pieces.
    """
    text = json.dumps(head, separators=(",", ":"))
    small = {name: data for name, data in blocks.items() if len(data) <= INLINE}
    large = {
        n: Array("uint8", (len(data),), "bytes", data)
        for n, data in blocks.items()
        if n not in small
    }
    content = RecordDict({"fjord": ConfigRecord({"head": text, **small})})
    if large:
        content["large"] = ArrayRecord(large)
    return content


def unpack_content(content: RecordDict) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return head and blocks of a message; raise KeyError or ValueError for anything else."""
    record = content.config_records["fjord"]
    head = json.loads(str(record["head"]))
    if not isinstance(head, dict):
        raise UserError("its head is not a JSON object")
    blocks = {name: value for name, value in record.items() if isinstance(value, bytes)}
    for name, array in content.array_records.get("large", ArrayRecord()).items():
        if array.dtype != "uint8" or array.stype != "bytes":
            raise UserError(
                f"its {name[:40]} is of {array.dtype[:40]!r} as {array.stype[:40]!r}, not uint8 as bytes"
            )
        blocks[name] = array.data
    return head, blocks


def _flat(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as one run of bytes."""
    parts = [
        tensors[key].detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        for key in _order(tensors)
    ]
    return b"".join(map(memoryview, parts))  # type: ignore[arg-type]


def _unflat(data: bytes, like: Like) -> dict[str, Tensor]:
    """Return the tensors in a run of bytes; they share its one copy."""
    sizes = {key: math.prod(shape) * dtype.itemsize for key, (shape, dtype) in like.items()}
    if len(data) != sum(sizes.values()):
        raise UserError(f"its slice has {len(data)} bytes, not {sum(sizes.values())}")
    memory, found, at = bytearray(data), dict[str, Tensor](), 0
    for key in _order({key: dtype for key, (_, dtype) in like.items()}):
        shape, dtype = like[key]
        count = math.prod(shape)
        flat = (
            torch.frombuffer(memory, dtype=dtype, count=count, offset=at)
            if count
            else torch.empty(0, dtype=dtype)
        )
        found[key] = flat.reshape(shape)
        at += sizes[key]
    return {key: found[key] for key in like}


def _order(kinds: Mapping[str, Any]) -> list[str]:
    """Return the keys as they travel: the widest numbers first, so that all lie at multiples of their size."""
    return sorted(kinds, key=lambda key: -kinds[key].itemsize)


def _cut_shape(tensor: Tensor, indices: AxisIndices) -> tuple[int, ...]:
    return tuple(n if i is None else len(i) for n, i in zip(tensor.shape, indices, strict=True))


def _mask(plan: WidthPlan, held: UnitSelection) -> bytes:
    """Return which units are held, one bit for each unit of each family."""
    marks = [torch.zeros(family.num_units, dtype=torch.bool) for family in plan.families]
    for family, mark in zip(plan.families, marks, strict=True):
        mark[held[family.name]] = True
    return np.packbits(torch.cat(marks).numpy()).tobytes()


def _held(plan: WidthPlan, head: Mapping[str, Any]) -> UnitSelection:
    """Return the units held: the first of each family, or those marked."""
    names = [family.name for family in plan.families]
    if "counts" in head:
        return {
            name: torch.arange(count)
            for name, count in zip(names, _list(head["counts"]), strict=True)
        }
    sizes = [family.num_units for family in plan.families]
    bits = np.unpackbits(np.frombuffer(b64decode(head["mask"]), np.uint8), count=sum(sizes))
    marks = torch.from_numpy(bits).split(sizes)
    return {name: mark.nonzero()[:, 0] for name, mark in zip(names, marks, strict=True)}


def _space(text: str) -> WidthSpace:
    """Return widths with their probabilities, from text such as 1/5:1/2,2/5:1/2."""
    pairs = [pair.split(":") for pair in text.split(",")]
    return WidthSpace(
        tuple(parse_width(width) for width, _ in pairs),
        tuple(parse_width(share) for _, share in pairs),
    )


def _by_width(space: WidthSpace, counts: object) -> dict[Width, int]:
    return {
        width: count for width, count in zip(space.widths, _list(counts), strict=True) if count != 0
    }


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"it has a {type(value).__name__} for a list of counts")
    return value
