"""`fjord export`: one plain file for one device, or one for each width."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from fjord.cli.trained import MODEL, TrainedModel, open_trained
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

out = Console(highlight=False)


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
    """Write submodels as plain files, each checked against its source before it is kept; print what they come to."""
    find_format(to)
    opened = open_trained(checkpoint, MODEL, model=model, shape=input)
    orders = []
    for chosen in _chosen(opened, width, widths):
        path = _target(opened, chosen, to, output, widths is not None)
        check_target_free(path, force)
        orders.append(ExportRequest(path, chosen, to, step, force, opened.facts(_key(chosen))))
    done = []
    for order in orders:
        with out.status(f"{order.path} ..."):
            net = _submodel(opened, order.width)
            done.append(
                export_network(net, opened.source.entry.model, opened.source.entry.inputs, order)
            )
    _show(done, f"{checkpoint} to {to}")


def _chosen(opened: TrainedModel, width: str | None, widths: str | None) -> list[Widths]:
    if width is not None and widths is not None:
        raise UserError("--width and --widths: give one of them")
    if (alone := _alone(opened, width or widths)) is not None:
        return [alone]
    if width is None and widths is None and len(opened.widths) > 1:
        raise UserError(
            f"--width: give one of {', '.join(map(str, opened.widths))}, or --widths all"
        )
    several = (
        list(opened.widths)
        if widths in (None, "all")
        else [parse_width(part) for part in str(widths).split(",")]
    )
    chosen = several if width is None else [parse_width(width)]
    for each in chosen:
        _demand(opened, each)
    return list(dict.fromkeys(chosen))


def _alone(opened: TrainedModel, text: str | None) -> Widths | None:
    """Return the width of a file that holds one submodel; another cannot be asked of it."""
    held = opened.info(None).width if None in opened.files else None
    if held is None:
        return None
    found = parse_layer_widths(held)
    if text not in (None, "all", held) and (
        isinstance(found, Mapping) or parse_width(str(text)) != found
    ):
        raise UserError(f"{opened.path}: holds the submodel of width {held} alone, not {text}")
    return found


def _demand(opened: TrainedModel, width: Width) -> None:
    info = opened.info(width)
    check_trained(info.plan.family_widths(width), info.space, bool(info.per_width), info.calibrated)
    if width not in info.space.widths:
        out.print(f"Note: the model was not trained at width {width}.", style="yellow")


def _key(width: Widths) -> Width | None:
    """Return the width by which a file may be known."""
    return None if isinstance(width, Mapping) else parse_width(width)


def _submodel(opened: TrainedModel, width: Widths) -> nn.Module:
    model: ElasticModel | nn.Module = opened.load(_key(width))
    return model.cut(width) if isinstance(model, ElasticModel) else model


def _target(
    opened: TrainedModel, width: Widths, to: str, output: Path | None, several: bool
) -> Path:
    """Return where the file of a width goes."""
    if output is not None and not several:
        return output
    source = opened.file(_key(width))
    stem = source.stem if None in opened.files else "model"
    if not isinstance(width, Mapping):
        stem += f"-{str(width).replace('/', 'of')}"
    if output is not None:
        _make(output)
    return (output or source.parent) / f"{stem}{FORMATS[to].suffix}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {folder}: with --widths it names a folder: {error}") from error


def _show(done: list[ExportedModel], title: str) -> None:
    widest = next((row.latency for row in done if row.width == 1), None)
    table = Table(title=title)
    table.add_column("width", no_wrap=True)
    table.add_column("file", overflow="fold")
    for name in ("bytes", "difference", "ms", "/ full", "MACs / full"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in done:
        shares = (
            "" if widest is None else f"{row.latency / widest:.2f}",
            f"{row.macs / row.full_macs:.2f}",
        )
        numbers = f"{row.bytes:,}", f"{row.difference:.1e}", f"{row.latency * 1e3:.3g}"
        label = "by layer" if isinstance(row.width, Mapping) else str(row.width)
        table.add_row(label, row.path.name, *numbers, *shares)
    out.print(table)
    takes = " and ".join(f"{i['name']} {'x'.join(map(str, i['shape']))}" for i in done[0].inputs)
    batch = f"any batch ({takes})" if done[0].open_batch else f"{takes} alone"
    notes = "; ".join(
        filter(None, (batch, done[0].note, "ms: the smallest batch, one thread, this machine"))
    )
    out.print(f"In {done[0].path.resolve().parent}: {notes}.", markup=False, soft_wrap=True)
