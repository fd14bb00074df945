"""`fjord export`: one plain file for one device, or one for each width."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fjord.elastic.probe import probe
from fjord.elastic.storage import read_info
from fjord.exports.export import Exported, Order, demand_free, demand_trained, export_net, macs_of
from fjord.exports.formats import FORMATS, find_format
from fjord.exports.source import Checkpoint, open_checkpoint
from fjord.width import Width, parse_width

out = Console(highlight=False)


def export(
    checkpoint: Annotated[Path, typer.Argument(help="A run folder, or a file written by ElasticModel.save().")],
    to: Annotated[str, typer.Option(help=f"The kind of file: {', '.join(FORMATS)}.")],
    width: Annotated[str | None, typer.Option(help="The width of the device, such as 2/5.")] = None,
    widths: Annotated[str | None, typer.Option(help="Several: all, or a list such as 1/5,2/5.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="The file, or with --widths a folder (default: beside the checkpoint).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's code, module:function or resnet18, cnn, rnn; a run folder knows it.")
    ] = None,
    input: Annotated[
        str | None, typer.Option("--input", help="Shape of a batch, such as 1x3x32x32 or 1x80:int64.")
    ] = None,
    step: Annotated[bool, typer.Option(help="A recurrent model one time step a call.")] = False,
    force: Annotated[bool, typer.Option(help="Write over files that exist.")] = False,
) -> None:
    """Write submodels as plain files, each checked against its source before it is kept; print what they come to."""
    find_format(to)
    opened = open_checkpoint(checkpoint, model, input)
    chosen = _chosen(opened, width, widths)
    orders = [
        Order(_target(opened, w, to, output, widths is not None), w, to, step, force, opened.facts(w)) for w in chosen
    ]
    for order in orders:
        demand_free(order.path, force)
    done = []
    for order in orders:
        with out.status(f"{order.path} ..."):
            done.append(export_net(opened.submodel(order.width), opened.entry.model, opened.entry.inputs, order))
    _show(opened, done, f"{checkpoint} to {to}")


def _chosen(opened: Checkpoint, width: str | None, widths: str | None) -> list[Width]:
    if width is not None and widths is not None:
        raise ValueError("--width and --widths: give one of them")
    if width is None and widths is None and len(opened.widths) > 1:
        raise ValueError(f"--width: give one of {', '.join(map(str, opened.widths))}, or --widths all")
    text = width or widths or "all"
    chosen = list(opened.widths) if text == "all" else [parse_width(part) for part in text.split(",")]
    for each in chosen:
        info = read_info(opened.file(each))
        if info.width is None:
            demand_trained(each, info.space, bool(info.per_width))
            if each not in info.space.widths:
                out.print(f"Note: the model was not trained at width {each}.", style="yellow")
    return list(dict.fromkeys(chosen))


def _target(opened: Checkpoint, width: Width, to: str, output: Path | None, several: bool) -> Path:
    """Return where the file of a width goes."""
    if output is not None and not several:
        return output
    source = opened.file(width)
    stem = source.stem if None in opened.files else "model"
    folder = output or source.parent
    if output is not None:
        _make(output)
    return folder / f"{stem}-{str(width).replace('/', 'of')}{FORMATS[to].suffix}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output {folder}: with --widths it names a folder: {error}") from error


def _show(opened: Checkpoint, done: list[Exported], title: str) -> None:
    entry = opened.entry
    full = macs_of(entry.model, entry.inputs, probe(entry.model, entry.inputs).batched)
    widest = next((row.latency for row in done if row.width == 1), None)
    table = Table(title=title)
    table.add_column("width", no_wrap=True)
    table.add_column("file", overflow="fold")
    for name in ("bytes", "difference", "ms", "/ full", "MACs / full"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in done:
        shares = "" if widest is None else f"{row.latency / widest:.2f}", f"{row.macs / full:.2f}"
        numbers = f"{row.bytes:,}", f"{row.difference:.1e}", f"{row.latency * 1e3:.3g}"
        table.add_row(str(row.width), row.path.name, *numbers, *shares)
    out.print(table)
    batch = "any batch" if done[0].open_batch else "one example a call"
    notes = "; ".join(filter(None, (batch, done[0].note, "ms: one example, one thread, this machine")))
    out.print(f"In {done[0].path.resolve().parent}: {notes}.", markup=False, soft_wrap=True)
