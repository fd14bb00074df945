"""`fjord export`: one plain file for one device, or one for each width."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column
from torch import nn

from fjord.cli.tables import format_ratio, out, print_line, print_table
from fjord.cli.trained import NEEDS_MODEL, TrainedModel, open_trained
from fjord.core.errors import UserError
from fjord.core.width import Width, Widths, parse_width
from fjord.deploy.exports.export import (
    ExportedModel,
    ExportRequest,
    check_target_free,
    check_trained,
    export_network,
)
from fjord.deploy.exports.formats import FORMATS, find_format
from fjord.elastic.model import ElasticModel
from fjord.elastic.storage import parse_layer_widths

ALL_WIDTHS = "all"
LATENCY_NOTE = "ms: the smallest batch, one thread, this machine"


def export_files(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run folder, or a file of ElasticModel.save() or `fjord cut`.")
    ],
    to: Annotated[str, typer.Option(help=f"The kind of file: {', '.join(FORMATS)}.")],
    width: Annotated[str | None, typer.Option(help="The width of the device, such as 2/5.")] = None,
    widths: Annotated[
        str | None, typer.Option(help="Several: all, or a list such as 1/5,2/5.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The file, or with --widths a folder (default: beside the checkpoint)."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model's code, module:function or resnet18, cnn, rnn; a run folder knows it."
        ),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", help="Shape of a batch, such as 1x3x32x32 or 1x80:int64."),
    ] = None,
    step: Annotated[bool, typer.Option(help="A recurrent model one time step a call.")] = False,
    force: Annotated[bool, typer.Option(help="Write over files that exist.")] = False,
) -> None:
    """Write submodels as plain files, each checked against its source before it is kept."""
    find_format(to)
    trained = open_trained(checkpoint, NEEDS_MODEL, model=model, shape=input)
    selected = _select_widths(trained, width, widths)
    # All targets are checked before the first file is written, which may take long.
    requests = []
    for each in selected:
        path = output
        if output is None or widths is not None:
            path = _default_path(trained, each, FORMATS[to].suffix, output)
        assert path is not None
        check_target_free(path, force)
        facts = trained.source_facts(_file_key(each))
        requests.append(ExportRequest(path, each, to, step, force, facts))
    exported = []
    for request in requests:
        with out.status(f"{request.path} ..."):
            net = _load_submodel(trained, request.width)
            entry = trained.source.entry
            exported.append(export_network(net, entry.model, entry.inputs, request))
    _print_files(exported, f"{checkpoint} to {to}")


def _select_widths(trained: TrainedModel, width: str | None, widths: str | None) -> list[Widths]:
    """Return the widths to export, each once; raise an error for those that cannot be."""
    if width is not None and widths is not None:
        raise UserError("--width and --widths: give one of them")
    only_width = _width_of_submodel(trained, width or widths)
    if only_width is not None:
        return [only_width]
    selected: list[Width] = []
    if width is not None:
        selected = [parse_width(width)]
    elif widths is not None and widths != ALL_WIDTHS:
        selected = [parse_width(part) for part in widths.split(",")]
    else:
        selected = list(trained.widths)
        if widths is None and len(selected) > 1:
            known = ", ".join(map(str, selected))
            raise UserError(f"--width: give one of {known}, or --widths all")
    for each in selected:
        _check_width(trained, each)
    return list(dict.fromkeys(selected))


def _width_of_submodel(trained: TrainedModel, text: str | None) -> Widths | None:
    """Return the width of a file with one submodel; None if the file has all widths.

    Raise an error if another width is asked for.
    """
    if None not in trained.files:
        return None
    stored = trained.read_info(None).width
    if stored is None:
        return None
    width = parse_layer_widths(stored)
    if text in (None, ALL_WIDTHS, stored):
        return width
    if isinstance(width, Mapping) or parse_width(str(text)) != width:
        raise UserError(f"{trained.path}: holds the submodel of width {stored} alone, not {text}")
    return width


def _check_width(trained: TrainedModel, width: Width) -> None:
    info = trained.read_info(width)
    widths = info.plan.family_widths(width)
    check_trained(widths, info.space, bool(info.per_width), info.calibrated)
    if width not in info.space.widths:
        out.print(f"Note: the model was not trained at width {width}.", style="yellow")


def _file_key(width: Widths) -> Width | None:
    """Return the width under which a trained model may have its file."""
    if isinstance(width, Mapping):
        return None
    return parse_width(width)


def _load_submodel(trained: TrainedModel, width: Widths) -> nn.Module:
    model: ElasticModel | nn.Module = trained.load_width(_file_key(width))
    if isinstance(model, ElasticModel):
        return model.cut(width)
    return model


def _default_path(trained: TrainedModel, width: Widths, suffix: str, folder: Path | None) -> Path:
    """Return where the file of a width goes: into a folder, or beside its source."""
    source = trained.file_of(_file_key(width))
    stem = "model"
    if None in trained.files:
        stem = source.stem
    if not isinstance(width, Mapping):
        stem += f"-{str(width).replace('/', 'of')}"
    if folder is None:
        folder = source.parent
    else:
        _make_folder(folder)
    return folder / f"{stem}{suffix}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"must be a folder if there are several widths: {error}"
        raise UserError(message, field="output", value=folder) from error


def _print_files(exported: list[ExportedModel], title: str) -> None:
    columns = [Column("width", no_wrap=True), Column("file", overflow="fold")]
    for name in ("bytes", "difference", "ms", "/ full", "MACs / full"):
        columns.append(Column(name, justify="right", no_wrap=True))
    full_latency = _full_latency(exported)
    rows = []
    for file in exported:
        label = str(file.width)
        if isinstance(file.width, Mapping):
            label = "by layer"
        latency_ratio = ""
        if full_latency is not None:
            latency_ratio = format_ratio(file.latency, full_latency)
        row = [
            label,
            file.path.name,
            f"{file.bytes:,}",
            f"{file.difference:.1e}",
            f"{file.latency * 1e3:.3g}",
            latency_ratio,
            format_ratio(file.macs, file.full_macs),
        ]
        rows.append(row)
    print_table(columns, rows, title=title)
    folder = exported[0].path.resolve().parent
    print_line(f"In {folder}: {_describe_file(exported[0])}.")


def _full_latency(exported: list[ExportedModel]) -> float | None:
    """Return the latency at full width, if that is among the files."""
    for file in exported:
        if file.width == 1:
            return file.latency
    return None


def _describe_file(file: ExportedModel) -> str:
    """Say which inputs a file takes, and how its latency was measured."""
    inputs = []
    for item in file.inputs:
        shape = "x".join(map(str, item["shape"]))
        inputs.append(f"{item['name']} {shape}")
    joined = " and ".join(inputs)
    notes = [f"{joined} alone"]
    if file.open_batch:
        notes = [f"any batch ({joined})"]
    if file.note:
        notes.append(file.note)
    notes.append(LATENCY_NOTE)
    return "; ".join(notes)
