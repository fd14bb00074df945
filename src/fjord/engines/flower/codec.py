"""Assignments and updates as Flower records: all tensors as one run of bytes, the rest as JSON.

Both sides know the model, so neither names nor shapes of tensors are sent: they follow from the
units that a client holds and from its widths.
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
from fjord.elastic.indexing import is_leading, sliced_shape
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.training.assignment import Assignment, ClientUpdate, Fallbacks, Reduction, Rejected

TensorSpecs = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""The shapes and types of tensors by their keys."""
INLINE_BYTES = 2**20
"""Blocks up to this size are sent beside the head."""


def encode_task(task: Assignment, plan: WidthPlan, run: Mapping[str, Any]) -> RecordDict:
    """Return the message with an assignment; `run` says which experiment it belongs to."""
    head: dict[str, Any] = {
        "client": task.client_id,
        "round": task.round_index,
        "ceiling": str(task.ceiling),
        "lr": task.lr,
        **run,
        "widths": _encode_space(task.space),
    }
    if all(map(is_leading, task.units.values())):
        head["counts"] = list(map(len, task.units.values()))
    else:
        head["mask"] = b64encode(_encode_mask(plan, task.units)).decode()
    blocks = {"slice": _join_tensors(task.tensors)}
    if task.correction:
        blocks["correction"] = _join_tensors(task.correction)
    return pack_content(head, blocks)


def decode_task(
    head: Mapping[str, Any],
    blocks: Mapping[str, bytes],
    model: ElasticModel,
    slice_index: SliceIndex,
) -> Assignment:
    """Return the assignment in an unpacked message; `slice_index` is that of the model."""
    space = _decode_space(head["widths"])
    units = _decode_units(model.plan, head)
    specs = {}
    trained_specs = {}
    for key, indices in slice_index(units, space.widths).items():
        tensor = model.tensors[key]
        specs[key] = (tuple(sliced_shape(tensor.shape, indices)), tensor.dtype)
        if isinstance(tensor, nn.Parameter):
            trained_specs[key] = specs[key]
    correction = {}
    if "correction" in blocks:
        correction = _split_tensors(blocks["correction"], trained_specs)
    return Assignment(
        client_id=head["client"],
        round_index=head["round"],
        ceiling=parse_width(head["ceiling"]),
        lr=head["lr"],
        units=units,
        space=space,
        tensors=_split_tensors(blocks["slice"], specs),
        correction=correction,
    )


def encode_update(task: Assignment, update: ClientUpdate) -> RecordDict:
    """Return the message with an update; `task` is what was trained, if that is less than sent."""
    widths = task.space.widths
    head: dict[str, Any] = {
        "client": update.client_id,
        "round": task.round_index,
        "examples": update.num_examples,
        "loss": update.loss,
        "macs": update.macs,
        "steps": [update.steps.get(width, 0) for width in widths],
        "reach": [update.widest_steps.get(width, 0) for width in widths],
    }
    if update.reduction:
        head["ceiling"] = str(update.reduction.ceiling)
        head["why"] = update.reduction.reason
    tensors = {key: update.tensors[key] for key in task.tensors}
    return pack_content(head, {"slice": _join_tensors(tensors)})


def decode_update(
    task: Assignment, content: RecordDict, fallbacks: Fallbacks
) -> ClientUpdate | Rejected:
    """Return the update in a reply, or what is wrong with it: no reply raises an error here."""
    try:
        return _decode_update(task, content, fallbacks)
    except KeyError as error:
        return Rejected(f"it has no {str(error.args[0])[:40]!r}")
    except (ValueError, TypeError, RecursionError) as error:
        return Rejected(str(error)[:300])


def _decode_update(task: Assignment, content: RecordDict, fallbacks: Fallbacks) -> ClientUpdate:
    head, blocks = unpack_content(content)
    if head["round"] != task.round_index:
        raise UserError(f"it answers round {head['round']!r:.40}")
    reduction = None
    if "ceiling" in head:
        reduction = Reduction(parse_width(str(head["ceiling"])[:40]), head["why"])
        smaller = fallbacks.at_ceiling(task, reduction.ceiling)
        if smaller is not None:  # otherwise the validation of updates will refuse it
            task = smaller
    specs = {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in task.tensors.items()}
    return ClientUpdate(
        client_id=head["client"],
        tensors=_split_tensors(blocks["slice"], specs),
        num_examples=head["examples"],
        loss=head["loss"],
        steps=_counts_by_width(task.space, head["steps"]),
        widest_steps=_counts_by_width(task.space, head["reach"]),
        macs=head["macs"],
        reduction=reduction,
    )


def pack_content(head: Mapping[str, Any], blocks: Mapping[str, bytes]) -> RecordDict:
    """Return a message's content.

    Small blocks are sent beside the head. As an Array each would be three objects more, with a
    request and 150 bytes for each, which is 3% of the smallest slices. Large blocks have to be
    Arrays, which Flower sends in pieces.
    """
    record = ConfigRecord({"head": json.dumps(head, separators=(",", ":"))})
    arrays = ArrayRecord()
    for name, data in blocks.items():
        if len(data) <= INLINE_BYTES:
            record[name] = data
        else:
            arrays[name] = Array("uint8", (len(data),), "bytes", data)
    content = RecordDict({"fjord": record})
    if arrays:
        content["large"] = arrays
    return content


def unpack_content(content: RecordDict) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return head and blocks of a message; raise KeyError or ValueError if it has another form."""
    record = content.config_records["fjord"]
    head = json.loads(str(record["head"]))
    if not isinstance(head, dict):
        raise UserError("its head is not a JSON object")
    blocks = {name: value for name, value in record.items() if isinstance(value, bytes)}
    for name, array in content.array_records.get("large", ArrayRecord()).items():
        if array.dtype != "uint8" or array.stype != "bytes":
            form = f"{array.dtype[:40]!r} as {array.stype[:40]!r}"
            raise UserError(f"its {name[:40]} is of {form}, not uint8 as bytes")
        blocks[name] = array.data
    return head, blocks


def wire_objects(content: Any) -> dict[str, bytes]:
    """Return the objects that Flower sends for a message's content, by their ids."""
    objects: dict[str, bytes] = {}
    for child in (content.children or {}).values():
        objects |= wire_objects(child)
    objects[content.object_id] = content.deflate()
    return objects


def content_bytes(content: RecordDict) -> int:
    """Return how many bytes a message's content is on the wire."""
    return sum(map(len, wire_objects(content).values()))


def _join_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    parts = []
    for key in _wire_order({key: tensor.dtype for key, tensor in tensors.items()}):
        flat = tensors[key].detach().contiguous().reshape(-1)
        parts.append(memoryview(flat.view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return b"".join(parts)


def _split_tensors(data: bytes, specs: TensorSpecs) -> dict[str, Tensor]:
    """Return the tensors in a run of bytes; they share one copy of it."""
    dtypes = {key: dtype for key, (_, dtype) in specs.items()}
    counts = {key: math.prod(shape) for key, (shape, _) in specs.items()}
    size = sum(counts[key] * dtype.itemsize for key, dtype in dtypes.items())
    if len(data) != size:
        raise UserError(f"its slice has {len(data)} bytes, not {size}")
    memory = bytearray(data)
    offset = 0
    tensors: dict[str, Tensor] = dict.fromkeys(specs, torch.empty(0))
    for key in _wire_order(dtypes):
        shape, dtype = specs[key]
        count = counts[key]
        if count:
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
        else:  # which frombuffer refuses
            flat = torch.empty(0, dtype=dtype)
        tensors[key] = flat.reshape(shape)
        offset += count * dtype.itemsize
    return tensors


def _wire_order(dtypes: Mapping[str, torch.dtype]) -> list[str]:
    """Return the keys in the order of sending: widest type first, so that all are aligned."""
    return sorted(dtypes, key=lambda key: -dtypes[key].itemsize)


def _encode_mask(plan: WidthPlan, units: UnitSelection) -> bytes:
    """Return which units are selected, as one bit for each unit of each family."""
    masks = []
    for family in plan.families:
        mask = torch.zeros(family.num_units, dtype=torch.bool)
        mask[units[family.name]] = True
        masks.append(mask)
    return np.packbits(torch.cat(masks).numpy()).tobytes()


def _decode_units(plan: WidthPlan, head: Mapping[str, Any]) -> UnitSelection:
    """Return the units that a client holds: the first of each family, or those of a mask."""
    names = [family.name for family in plan.families]
    if "counts" in head:
        counts = zip(names, _check_list(head["counts"]), strict=True)
        return {name: torch.arange(count) for name, count in counts}
    sizes = [family.num_units for family in plan.families]
    packed = np.frombuffer(b64decode(head["mask"]), np.uint8)
    bits = torch.from_numpy(np.unpackbits(packed, count=sum(sizes)))
    masks = zip(names, bits.split(sizes), strict=True)
    return {name: mask.nonzero()[:, 0] for name, mask in masks}


def _encode_space(space: WidthSpace) -> str:
    """Return widths with their probabilities, such as 1/5:1/2,2/5:1/2."""
    pairs = zip(space.widths, space.probabilities, strict=True)
    return ",".join(f"{width}:{probability}" for width, probability in pairs)


def _decode_space(text: str) -> WidthSpace:
    widths = []
    probabilities = []
    for pair in text.split(","):
        width, probability = pair.split(":")
        widths.append(parse_width(width))
        probabilities.append(parse_width(probability))
    return WidthSpace(tuple(widths), tuple(probabilities))


def _counts_by_width(space: WidthSpace, value: object) -> dict[Width, int]:
    counts = _check_list(value)
    if len(counts) != len(space.widths):
        raise UserError(f"it has {len(counts)} counts for {len(space.widths)} widths")
    pairs = zip(space.widths, counts, strict=True)
    return {width: count for width, count in pairs if count != 0}


def _check_list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"it has a {type(value).__name__} for a list of counts")
    return value
