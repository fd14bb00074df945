"""Assignments and updates as Flower records: all tensors as one run of bytes, the rest as JSON.

Both sides know the model, so neither names nor shapes of tensors are sent: they follow from the
units that a client holds and from its widths.
"""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
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

INLINE_BYTES = 2**20
"""Blocks up to this size are sent beside the head."""
MAX_QUOTED = 40
"""How much of what a client sends is repeated in an error."""


@dataclass(frozen=True)
class TensorSpec:
    """The shape and the type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return how many bytes they are."""
        return self.num_elements * self.dtype.itemsize


def encode_task(
    task: Assignment,
    plan: WidthPlan,
    run: Mapping[str, Any],
) -> RecordDict:
    """Return the message with an assignment; `run` says which experiment it belongs to."""
    head: dict[str, Any] = {
        "client": task.client_id,
        "round": task.round_index,
        "lr": task.lr,
        **run,
        "widths": _encode_space(task.space),
    }
    if task.ceiling != task.space.largest:  # as with methods that train one width
        head["ceiling"] = str(task.ceiling)
    if all(map(is_leading, task.units.values())):
        head["counts"] = list(map(len, task.units.values()))
    else:
        mask = _encode_mask(plan, task.units)
        head["mask"] = b64encode(mask).decode()
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
        shape = sliced_shape(tensor.shape, indices)
        spec = TensorSpec(tuple(shape), tensor.dtype)
        specs[key] = spec
        if isinstance(tensor, nn.Parameter):
            trained_specs[key] = spec
    correction = {}
    if "correction" in blocks:
        correction = _split_tensors(blocks["correction"], trained_specs)
    return Assignment(
        client_id=head["client"],
        round_index=head["round"],
        ceiling=parse_width(head.get("ceiling", space.largest)),
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
    task: Assignment,
    content: RecordDict,
    fallbacks: Fallbacks,
) -> ClientUpdate | Rejected:
    """Return the update in a reply, or what is wrong with it: no reply raises an error here."""
    try:
        return _decode_update(task, content, fallbacks)
    except KeyError as error:
        name = str(error.args[0])
        return Rejected(f"it has no {name[:MAX_QUOTED]!r}")
    except (ValueError, TypeError, RecursionError) as error:
        return Rejected(str(error)[:300])


def _decode_update(
    task: Assignment,
    content: RecordDict,
    fallbacks: Fallbacks,
) -> ClientUpdate:
    head, blocks = unpack_content(content)
    if head["round"] != task.round_index:
        raise UserError(f"it answers round {head['round']!r:.40}")
    reduction = _decode_reduction(head)
    if reduction is not None:
        smaller = fallbacks.at_ceiling(task, reduction.ceiling)
        if smaller is not None:  # otherwise the validation of updates will refuse it
            task = smaller
    specs = {}
    for key, tensor in task.tensors.items():
        specs[key] = TensorSpec(tuple(tensor.shape), tensor.dtype)
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


def _decode_reduction(head: Mapping[str, Any]) -> Reduction | None:
    if "ceiling" not in head:
        return None
    text = str(head["ceiling"])
    ceiling = parse_width(text[:MAX_QUOTED])
    return Reduction(ceiling, head["why"])


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
    blocks = {}
    for name, value in record.items():
        if isinstance(value, bytes):
            blocks[name] = value
    arrays = content.array_records.get("large", ArrayRecord())
    for name, array in arrays.items():
        if array.dtype != "uint8" or array.stype != "bytes":
            dtype = array.dtype[:MAX_QUOTED]
            stype = array.stype[:MAX_QUOTED]
            quoted = name[:MAX_QUOTED]
            raise UserError(f"its {quoted} is of {dtype!r} as {stype!r}, not uint8 as bytes")
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
    for key in _wire_order(tensors):
        flat = tensors[key].detach().contiguous().reshape(-1)
        array = flat.view(torch.uint8).numpy()
        parts.append(memoryview(array))  # type: ignore[arg-type]
    return b"".join(parts)


def _split_tensors(data: bytes, specs: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    """Return the tensors in a run of bytes; they share one copy of it."""
    size = sum(spec.num_bytes for spec in specs.values())
    if len(data) != size:
        raise UserError(f"its slice has {len(data)} bytes, not {size}")
    memory = bytearray(data)
    offset = 0
    tensors = {}
    dtypes = {key: spec.dtype for key, spec in specs.items()}
    for key in _wire_order(dtypes):
        spec = specs[key]
        tensors[key] = _read_tensor(memory, offset, spec)
        offset += spec.num_bytes
    return {key: tensors[key] for key in specs}


def _read_tensor(memory: bytearray, offset: int, spec: TensorSpec) -> Tensor:
    count = spec.num_elements
    if count == 0:  # which frombuffer refuses
        return torch.empty(spec.shape, dtype=spec.dtype)
    flat = torch.frombuffer(
        memory,
        dtype=spec.dtype,
        count=count,
        offset=offset,
    )
    return flat.reshape(spec.shape)


def _wire_order(tensors: Mapping[str, Tensor] | Mapping[str, torch.dtype]) -> list[str]:
    """Return the keys in the order of sending: widest numbers first, so that all are aligned."""
    return sorted(tensors, key=lambda key: -tensors[key].itemsize)


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
    units = {}
    if "counts" in head:
        counts = _check_list(head["counts"])
        for family, count in zip(plan.families, counts, strict=True):
            units[family.name] = torch.arange(count)
        return units
    sizes = [family.num_units for family in plan.families]
    packed = np.frombuffer(b64decode(head["mask"]), np.uint8)
    bits = torch.from_numpy(np.unpackbits(packed, count=sum(sizes)))
    for family, mask in zip(plan.families, bits.split(sizes), strict=True):
        units[family.name] = mask.nonzero()[:, 0]
    return units


def _encode_space(space: WidthSpace) -> str:
    """Return widths with their probabilities, such as 1/5:1/2,2/5:1/2."""
    pairs = []
    for width, probability in zip(space.widths, space.probabilities, strict=True):
        pairs.append(f"{width}:{probability}")
    return ",".join(pairs)


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
    widths = space.widths
    if len(counts) != len(widths):
        raise UserError(f"it has {len(counts)} counts for {len(widths)} widths")
    by_width = {}
    for width, count in zip(widths, counts, strict=True):
        if count != 0:
            by_width[width] = count
    return by_width


def _check_list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"it has a {type(value).__name__} for a list of counts")
    return value
