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
from fjord.deploy.exports.formats import ExportFormat, find_format
from fjord.deploy.exports.plain import PlainNetwork, RunFile, fixed_inputs
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
    """A file that was written, and the results of its trial."""

    width: Widths
    """The width, or the widths by layer."""
    path: Path
    bytes: int
    difference: float
    """The largest difference from the source, relative to the largest output above 1."""
    latency: float
    """Seconds of a call with one example, one thread."""
    macs: int
    full_macs: int
    """The multiply-accumulates of the full-size model."""
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
    """Write one width of a model to one file that runs without this package, and check it.

    `width` may be widths by layer, as `search_widths` finds them. `inputs` is an example of the
    model's inputs, of which only shapes and types matter. `to` is onnx, executorch or torch; `step`
    writes a recurrent model one time step a call; `force` writes over a file that exists. The file
    is run on random inputs, and not kept if it differs from the model by more than 1e-4.
    """
    has_norms = bool(batchnorm_tensors(model.blueprint.template, model.norms))
    check_trained(model.plan.family_widths(width), model.space, has_norms, model.calibrated)
    exact = parse_layer_widths(format_layer_widths(width))
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    request = ExportRequest(Path(path), exact, to, step, force)
    return export_network(model.cut(exact), model.blueprint.template, tuple(inputs), request)


def check_trained(
    widths: dict[str, Width],
    space: WidthSpace,
    has_norms: bool,
    calibrated: Collection[LayerWidths] = (),
) -> None:
    """Raise an error for widths that have no weights of their own, or no BatchNorm layers."""
    trained = ", ".join(map(str, space.widths))
    widest = max(widths.values())
    if widest > space.largest:
        raise UserError(
            f"width {widest} is above the widest the model was trained at; "
            f"it was trained at {trained}"
        )
    untrained = sorted(set(widths.values()) - set(space.widths))
    if untrained and has_norms and as_layer_widths(widths) not in calibrated:
        raise UserError(
            f"width {', '.join(map(str, untrained))} is not one of {trained}, where the model was "
            "trained: it has no BatchNorm layers of its own; give it statistics with "
            "fjord.recalibrate(model, width, batches), and save the model with them"
        )


@dataclass(frozen=True)
class ExportRequest:
    """What to write, and where."""

    path: Path
    width: Widths
    to: str = "onnx"
    step: bool = False
    force: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the file records about its source, beside its width and its inputs."""

    def file_facts(self) -> dict[str, Any]:
        """Return what the file records about itself, but for its inputs."""
        own = {
            "format": 1,
            "fjord": version("fjord-fl"),
            "width": format_layer_widths(self.width),
        }
        return {**own, **self.facts}


def export_network(
    net: nn.Module, template: nn.Module, inputs: tuple[Any, ...], request: ExportRequest
) -> ExportedModel:
    """Write a plain submodel of a full-size model; that one may be without weights."""
    export_format = find_format(request.to)
    check_target_free(request.path, request.force)
    net.eval()
    unrolled = export_format.unrolls and bool(recurrent_layers(net))
    trial = _make_trial(net, template, inputs, request.step or unrolled)
    macs = example_macs(net, trial)
    full_macs = example_macs(template, trial)
    with quiet_logs(), one_thread(), _open_draft(request.path) as draft:
        written = export_format.write(trial.plain_network(), request.file_facts(), draft)
        run, difference = _run_trial(export_format, draft, request.path, trial, written)
        latency = measure_latency(run, fixed_inputs(written).example)
        size = draft.stat().st_size
    return ExportedModel(
        width=request.width,
        path=request.path,
        bytes=size,
        difference=difference,
        latency=latency,
        macs=macs,
        full_macs=full_macs,
        open_batch=written.open_batch,
        inputs=tuple(written.describe_inputs()),
        note=written.note,
    )


def _run_trial(
    export_format: ExportFormat,
    draft: Path,
    path: Path,
    trial: ExportTrial,
    written: PlainNetwork,
) -> tuple[RunFile, float]:
    """Return a function that runs the file, and its difference from the source model."""
    try:
        run, _ = export_format.open_file(draft)
        difference = trial.worst_difference(run, written)
    except ValueError:
        raise
    except Exception as error:  # each runtime has errors of its own
        message = f"{path}: the file does not run, and was not kept: {first_line(error)}"
        raise UserError(message) from error
    if not difference <= TOLERANCE:  # written so that NaN is too far as well
        raise UserError(
            f"{path}: differs from the source model by {difference:.1e}, "
            f"more than {TOLERANCE:.0e}: it is not kept"
        )
    return run, difference


def _make_trial(
    net: nn.Module, template: nn.Module, inputs: tuple[Any, ...], step: bool
) -> ExportTrial:
    if step:
        check_steps(net, inputs)
        return ExportTrial(net, template, inputs, batched=True, step=True)
    batched = accepts_batches(net, template, inputs)
    return ExportTrial(net, template, inputs, batched, step=False)


def example_macs(net: nn.Module, trial: ExportTrial) -> int:
    """Return the multiply-accumulates of one example.

    Where the inputs have no axis of examples, they are those of a whole call.
    """
    inputs = trial.inputs
    if trial.batched:
        inputs = resize_batch(inputs, 1, trial.axis)
    shapes = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), inputs)
    return count_macs(without_weights(net), shapes)


def check_target_free(path: Path, force: bool) -> None:
    """Raise an error if a file cannot be at a path, or if one is there already."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")
    if path.exists() and not force:
        raise UserError(f"is needed to write over {path}, which exists", field="force")


@contextmanager
def _open_draft(path: Path) -> Iterator[Path]:
    """Give a draft that replaces the file at the end of the block, if all goes well."""
    try:
        with atomic_write(path) as draft:
            draft.touch()  # a folder that cannot be written is found before the long work
            yield draft
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error}") from error
