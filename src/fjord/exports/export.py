"""Writes one submodel to one file, tries the file, and only then gives it its name."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fjord.elastic.blueprint import without_weights
from fjord.elastic.model import ElasticModel, Mix, as_mix
from fjord.elastic.norms import norm_tensors
from fjord.elastic.probe import resized
from fjord.elastic.storage import parse_widths, put_in_place, show_widths
from fjord.exports.formats import find_format
from fjord.exports.plain import fixed
from fjord.exports.step import demand_steps, recurrent
from fjord.exports.traced import first_line, quiet
from fjord.exports.trial import TOLERANCE, Trial, is_batched, latency
from fjord.footprint import count_macs
from fjord.threads import one_thread
from fjord.width import Width, Widths, WidthSpace


@dataclass(frozen=True)
class Exported:
    """A file that was kept, and what the trial of it came to."""

    width: Widths
    """The width, or those of the layers."""
    path: Path
    bytes: int
    difference: float
    """The largest difference from the source, over the largest output where that is above 1."""
    latency: float
    """Seconds of a call with one example, one thread."""
    macs: int
    full_macs: int
    """Those of the full-size model."""
    open_batch: bool
    inputs: tuple[Mapping[str, Any], ...]
    """Name, shape and type of each input, with 'batch' for a size that is open."""
    note: str = ""


def export(
    model: ElasticModel,
    width: Widths,
    path: str | Path,
    inputs: Any,
    *,
    to: str = "onnx",
    step: bool = False,
    force: bool = False,
) -> Exported:
    """Write one width of a model to one file that runs without this package, and check it on random inputs.

    `width` may be widths by layer, as `search` finds them. `inputs` is an example of the model's inputs, of which only
    shapes and types matter. `to` is onnx, executorch or torch; `step` writes a recurrent model one time step a call.
    A file that is off by more than 1e-4 is not kept.
    """
    has_norms = bool(norm_tensors(model.blueprint.template, model.norms))
    demand_trained(model.plan.widths(width), model.space, has_norms, model.calibrated)
    exact = parse_widths(show_widths(width))
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    return export_net(model.cut(exact), model.blueprint.template, given, Order(Path(path), exact, to, step, force))


def demand_trained(
    widths: dict[str, Width], space: WidthSpace, has_norms: bool, calibrated: Collection[Mix] = ()
) -> None:
    """Refuse widths that have no weights of their own, or no BatchNorm layers."""
    trained, widest = ", ".join(map(str, space.widths)), max(widths.values())
    if widest > space.largest:
        raise ValueError(f"width {widest} is above the widest the model was trained at; it was trained at {trained}")
    strange = ", ".join(map(str, sorted(set(widths.values()) - set(space.widths))))
    if strange and has_norms and as_mix(widths) not in calibrated:
        raise ValueError(
            f"width {strange} is not one of {trained}, where the model was trained: it has no BatchNorm layers of its "
            "own; give it statistics with fjord.recalibrate(model, width, batches), and save the model with them"
        )


@dataclass(frozen=True)
class Order:
    """What to write where."""

    path: Path
    width: Widths
    to: str = "onnx"
    step: bool = False
    force: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the file says of itself beside its width and its inputs."""


def export_net(net: nn.Module, template: nn.Module, inputs: tuple[Any, ...], order: Order) -> Exported:
    """Write a plain submodel of a full-size model, which may be without weights."""
    form = find_format(order.to)
    demand_free(order.path, order.force)
    trial = _trial(net.eval(), template, inputs, order.step or (form.unrolls and bool(recurrent(net))))
    macs = macs_of(net, trial), macs_of(template, trial)
    facts = {"format": 1, "fjord": version("fjord-fl"), "width": show_widths(order.width), **order.facts}
    with quiet(), one_thread(), _draft(order.path) as draft:
        written = form.write(trial.plain(), facts, draft)
        try:
            run, _ = form.open_file(draft)
            worst = trial.worst(run, written)
        except ValueError:
            raise
        except Exception as error:  # each runtime has errors of its own
            raise ValueError(f"{order.path}: the file does not run, and was not kept: {first_line(error)}") from error
        if not worst <= TOLERANCE:
            raise ValueError(
                f"{order.path}: differs from the source model by {worst:.1e}, more than {TOLERANCE:.0e}: it is not kept"
            )
        seconds = latency(run, fixed(written).example)
        size = draft.stat().st_size
        put_in_place(draft, order.path)
    takes = written.open_batch, tuple(written.described())
    return Exported(order.width, order.path, size, worst, seconds, *macs, *takes, written.note)


def _trial(net: nn.Module, template: nn.Module, inputs: tuple[Any, ...], step: bool) -> Trial:
    if step:
        demand_steps(net, inputs)
    return Trial(net, template, inputs, step or is_batched(net, template, inputs), step)


def macs_of(net: nn.Module, trial: Trial) -> int:
    """Return the multiply-accumulates of one example, or of a whole call where the inputs have no axis of examples."""
    inputs = resized(trial.inputs, 1, trial.axis) if trial.batched else trial.inputs
    return count_macs(without_weights(net), pytree.tree_map_only(Tensor, lambda t: t.to("meta"), inputs))


def demand_free(path: Path, force: bool) -> None:
    """Refuse a place where no file can be, or where one is."""
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if path.exists() and not force:
        raise ValueError(f"{path}: exists already; --force writes over it")


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Give a name beside a file's place; whatever is left there at the end goes."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.touch()  # a folder that cannot be written shows before the long work
        yield draft
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
