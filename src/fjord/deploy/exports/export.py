"""Writes one submodel to one file, tries the file, and only then gives it its name."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fjord.core.errors import UserError
from fjord.core.files import atomic_write
from fjord.core.threads import one_thread
from fjord.core.width import Width, Widths, WidthSpace
from fjord.deploy.exports.formats import find_format
from fjord.deploy.exports.plain import fixed_inputs
from fjord.deploy.exports.step import check_steps, recurrent_layers
from fjord.deploy.exports.traced import first_line, quiet_logs
from fjord.deploy.exports.trial import TOLERANCE, ExportTrial, accepts_batches, measure_latency
from fjord.elastic.batchnorm import batchnorm_tensors
from fjord.elastic.footprint import count_macs
from fjord.elastic.model import ElasticModel, LayerWidths, as_layer_widths
from fjord.elastic.module_tensors import without_weights
from fjord.elastic.storage import format_layer_widths, parse_layer_widths
from fjord.elastic.trace.example_inputs import resize_batch


@dataclass(frozen=True)
class ExportedModel:
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


def export_model(
    model: ElasticModel,
    width: Widths,
    path: str | Path,
    inputs: Any,
    *,
    to: str = "onnx",
    step: bool = False,
    force: bool = False,
) -> ExportedModel:
    """Write one width of a model to one file that runs without this package, and check it on random inputs.

    `width` may be widths by layer, as `search` finds them. `inputs` is an example of the model's inputs, of which only
    shapes and types matter. `to` is onnx, executorch or torch; `step` writes a recurrent model one time step a call.
    A file that is off by more than 1e-4 is not kept.
    """
    has_norms = bool(batchnorm_tensors(model.blueprint.template, model.norms))
    check_trained(model.plan.family_widths(width), model.space, has_norms, model.calibrated)
    exact = parse_layer_widths(format_layer_widths(width))
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    return export_network(
        model.cut(exact),
        model.blueprint.template,
        given,
        ExportRequest(Path(path), exact, to, step, force),
    )


def check_trained(
    widths: dict[str, Width],
    space: WidthSpace,
    has_norms: bool,
    calibrated: Collection[LayerWidths] = (),
) -> None:
    """Refuse widths that have no weights of their own, or no BatchNorm layers."""
    trained, widest = ", ".join(map(str, space.widths)), max(widths.values())
    if widest > space.largest:
        raise UserError(
            f"width {widest} is above the widest the model was trained at; it was trained at {trained}"
        )
    strange = ", ".join(map(str, sorted(set(widths.values()) - set(space.widths))))
    if strange and has_norms and as_layer_widths(widths) not in calibrated:
        raise UserError(
            f"width {strange} is not one of {trained}, where the model was trained: it has no BatchNorm layers of its "
            "own; give it statistics with fjord.recalibrate(model, width, batches), and save the model with them"
        )


@dataclass(frozen=True)
class ExportRequest:
    """What to write where."""

    path: Path
    width: Widths
    to: str = "onnx"
    step: bool = False
    force: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the file says of itself beside its width and its inputs."""


def export_network(
    net: nn.Module, template: nn.Module, inputs: tuple[Any, ...], order: ExportRequest
) -> ExportedModel:
    """Write a plain submodel of a full-size model, which may be without weights."""
    form = find_format(order.to)
    check_target_free(order.path, order.force)
    trial = _trial(
        net.eval(), template, inputs, order.step or (form.unrolls and bool(recurrent_layers(net)))
    )
    macs = example_macs(net, trial), example_macs(template, trial)
    facts = {
        "format": 1,
        "fjord": version("fjord-fl"),
        "width": format_layer_widths(order.width),
        **order.facts,
    }
    with quiet_logs(), one_thread(), _draft(order.path) as draft:
        written = form.write(trial.plain(), facts, draft)
        try:
            run, _ = form.open_file(draft)
            worst = trial.worst(run, written)
        except ValueError:
            raise
        except Exception as error:  # each runtime has errors of its own
            raise UserError(
                f"{order.path}: the file does not run, and was not kept: {first_line(error)}"
            ) from error
        if not worst <= TOLERANCE:
            raise UserError(
                f"{order.path}: differs from the source model by {worst:.1e}, more than {TOLERANCE:.0e}: it is not kept"
            )
        seconds = measure_latency(run, fixed_inputs(written).example)
        size = draft.stat().st_size
    takes = written.open_batch, tuple(written.described())
    return ExportedModel(order.width, order.path, size, worst, seconds, *macs, *takes, written.note)


def _trial(net: nn.Module, template: nn.Module, inputs: tuple[Any, ...], step: bool) -> ExportTrial:
    if step:
        check_steps(net, inputs)
    return ExportTrial(net, template, inputs, step or accepts_batches(net, template, inputs), step)


def example_macs(net: nn.Module, trial: ExportTrial) -> int:
    """Return the multiply-accumulates of one example, or of a whole call where the inputs have no axis of examples."""
    inputs = resize_batch(trial.inputs, 1, trial.axis) if trial.batched else trial.inputs
    return count_macs(
        without_weights(net), pytree.tree_map_only(Tensor, lambda t: t.to("meta"), inputs)
    )


def check_target_free(path: Path, force: bool) -> None:
    """Refuse a place where no file can be, or where one is."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")
    if path.exists() and not force:
        raise UserError(f"{path}: exists already; --force writes over it")


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Give a draft that takes the place of a file at the end, if all goes well."""
    try:
        with atomic_write(path) as draft:
            draft.touch()  # a folder that cannot be written shows before the long work
            yield draft
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error}") from error
