"""Tasks and updates as Flower records: all tensors of a slice as one run of bytes, the rest as a small config.

Both sides know the model, so neither names nor shapes travel: they follow from the units held and the widths.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import Indices, Kept, WidthPlan, leading
from fjord.elastic.slice import Places
from fjord.local import Parts, Reduced, Task, Update
from fjord.width import Width, WidthSpace, parse_width

Like = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""The shapes and kinds of some tensors."""


def encode_task(task: Task, plan: WidthPlan) -> RecordDict:
    """Return what a client is sent."""
    blocks = {"tensors": _flat(task.tensors), **({"correction": _flat(task.correction)} if task.correction else {})}
    config: dict[str, Any] = {"client": task.client_id, "round": task.round_index, "lr": task.lr}
    pairs = zip(task.space.widths, task.space.probabilities, strict=True)
    config["widths"] = ",".join(f"{width}:{share}" for width, share in pairs)
    if all(map(leading, task.held.values())):
        config["counts"] = [len(units) for units in task.held.values()]
    else:
        config["mask"] = _mask(plan, task.held)
    return RecordDict({"slice": ArrayRecord(blocks), "task": ConfigRecord(config)})


def decode_task(content: RecordDict, model: ElasticModel, places: Places) -> Task:
    """Return the task that was sent; `places` says where a slice lies in the model."""
    config: Mapping[str, Any] = content.config_records["task"]
    space = _space(str(config["widths"]))
    held = _held(model.plan, config)
    like = {
        key: (_cut_shape(model.tensors[key], indices), model.tensors[key].dtype)
        for key, indices in places(held, space.widths).items()
    }
    arrays = content.array_records["slice"]
    trained = {key: kind for key, kind in like.items() if isinstance(model.tensors[key], nn.Parameter)}
    return Task(
        client_id=config["client"],
        round_index=config["round"],
        lr=float(config["lr"]),
        held=held,
        space=space,
        tensors=_unflat(arrays["tensors"], like),
        correction=_unflat(arrays["correction"], trained) if "correction" in arrays else {},
    )


def encode_update(task: Task, update: Update) -> RecordDict:
    """Return what a client sends back; the task is the smaller one if the client trained less than it was sent."""
    tensors = {key: update.tensors[key] for key in task.tensors}
    counts = [[update.steps.get(w, 0), update.reach.get(w, 0)] for w in task.space.widths]
    config: dict[str, Any] = {
        "client": update.client_id,
        "round": task.round_index,
        "examples": update.num_examples,
        "loss": update.loss,
        "macs": update.macs,
        "steps": [steps for steps, _ in counts],
        "reach": [reach for _, reach in counts],
    }
    if update.reduced:
        config |= {"ceiling": str(update.reduced.ceiling), "why": update.reduced.why}
    return RecordDict({"slice": ArrayRecord({"tensors": _flat(tensors)}), "update": ConfigRecord(config)})


def decode_update(task: Task, content: RecordDict, parts: Parts) -> Update | str:
    """Return the answer to a task, or what is wrong with it; nothing that a client sends raises an error here."""
    try:
        config: Mapping[str, Any] = content.config_records["update"]
        arrays = content.array_records["slice"]
        if config["round"] != task.round_index:
            return f"it answers round {config['round']!r:.40}"
        reduced = _reduced(config)
        if reduced and (smaller := parts.smaller(task, reduced.ceiling)) is not None:
            task = smaller  # if there is none, the door will say so
        like = {key: (tuple(t.shape), t.dtype) for key, t in task.tensors.items()}
        return Update(
            client_id=config["client"],
            tensors=_unflat(arrays["tensors"], like),
            num_examples=config["examples"],
            loss=config["loss"],
            steps=_by_width(task.space, config["steps"]),
            reach=_by_width(task.space, config["reach"]),
            macs=config["macs"],
            reduced=reduced,
        )
    except KeyError as error:
        return f"it has no {str(error.args[0])[:40]!r}"
    except (ValueError, TypeError) as error:
        return str(error)[:300]


def _reduced(config: Mapping[str, Any]) -> Reduced | None:
    return Reduced(parse_width(str(config["ceiling"])[:40]), config["why"]) if "ceiling" in config else None


def _flat(tensors: Mapping[str, Tensor]) -> Array:
    """Return tensors as one run of bytes."""
    parts = [tensors[key].detach().contiguous().reshape(-1).view(torch.uint8).numpy() for key in _order(tensors)]
    data = b"".join(map(memoryview, parts))  # type: ignore[arg-type]
    return Array("uint8", (len(data),), "bytes", data)


def _unflat(array: Array, like: Like) -> dict[str, Tensor]:
    """Return the tensors in a run of bytes; they share its one copy."""
    sizes = {key: math.prod(shape) * dtype.itemsize for key, (shape, dtype) in like.items()}
    if array.dtype != "uint8" or array.stype != "bytes":
        raise ValueError(f"its slice is of {array.dtype[:40]!r} as {array.stype[:40]!r}, not uint8 as bytes")
    if len(array.data) != sum(sizes.values()):
        raise ValueError(f"its slice has {len(array.data)} bytes, not {sum(sizes.values())}")
    memory, found, at = bytearray(array.data), dict[str, Tensor](), 0
    for key in _order({key: dtype for key, (_, dtype) in like.items()}):
        shape, dtype = like[key]
        count = math.prod(shape)
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
        found[key] = flat.reshape(shape)
        at += sizes[key]
    return {key: found[key] for key in like}


def _order(kinds: Mapping[str, Any]) -> list[str]:
    """Return the keys as they travel: the widest numbers first, so that all lie at multiples of their size."""
    return sorted(kinds, key=lambda key: -kinds[key].itemsize)


def _cut_shape(tensor: Tensor, indices: Indices) -> tuple[int, ...]:
    return tuple(n if i is None else len(i) for n, i in zip(tensor.shape, indices, strict=True))


def _mask(plan: WidthPlan, held: Kept) -> bytes:
    """Return which units are held, one bit for each unit of each family."""
    marks = [torch.zeros(family.units, dtype=torch.bool) for family in plan.families]
    for family, mark in zip(plan.families, marks, strict=True):
        mark[held[family.name]] = True
    return np.packbits(torch.cat(marks).numpy()).tobytes()


def _held(plan: WidthPlan, config: Mapping[str, Any]) -> Kept:
    """Return the units held: the first of each family, or those marked."""
    names = [family.name for family in plan.families]
    if "counts" in config:
        return {name: torch.arange(count) for name, count in zip(names, _list(config["counts"]), strict=True)}
    sizes = [family.units for family in plan.families]
    bits = np.unpackbits(np.frombuffer(config["mask"], np.uint8), count=sum(sizes))
    marks = torch.from_numpy(bits).split(sizes)
    return {name: mark.nonzero()[:, 0] for name, mark in zip(names, marks, strict=True)}


def _space(text: str) -> WidthSpace:
    """Return widths with their probabilities, from text such as 1/5:1/2,2/5:1/2."""
    pairs = [pair.split(":") for pair in text.split(",")]
    return WidthSpace(tuple(parse_width(width) for width, _ in pairs), tuple(parse_width(share) for _, share in pairs))


def _by_width(space: WidthSpace, counts: object) -> dict[Width, int]:
    return {width: count for width, count in zip(space.widths, _list(counts), strict=True) if count != 0}


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"it has a {type(value).__name__} for a list of counts")
    return value
