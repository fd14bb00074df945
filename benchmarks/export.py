"""Exported files against their source, and what a call takes: `python -m benchmarks.export [FORMAT ...]`.

The paper's three models at every width of uniform-5, by default in all formats that are installed: the largest
difference from the submodel in torch, bytes, and the latency of one example with one thread, over that at full width
and beside the ratio of multiply-accumulates. Widths take turns, and the best of several medians counts.
"""

import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import fjord
from fjord.elastic.model import ElasticModel
from fjord.exports.formats import FORMATS, find_format
from fjord.exports.plain import fixed
from fjord.exports.trial import Trial, latency, one_thread
from fjord.models.catalog import find_model

INPUTS = {"resnet18": "1x3x32x32", "cnn": "1x1x28x28", "rnn": "1x80"}
TURNS = 3


def main() -> None:
    console = Console(width=110, highlight=False)
    for name in sys.argv[1:] or installed():
        for model in INPUTS:
            console.print(table(model, name))


def installed() -> list[str]:
    found = []
    for name in FORMATS:
        try:
            find_format(name)
            found.append(name)
        except ValueError as error:
            print(f"left out: {error}")
    return found


def table(name: str, to: str) -> Table:
    torch.manual_seed(0)
    entry = find_model(name, INPUTS[name])
    model = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    with tempfile.TemporaryDirectory() as folder:
        done = {
            w: fjord.export(model, w, Path(folder) / f"{i}", entry.inputs, to=to)
            for i, w in enumerate(model.space.widths)
        }
        spans = timed(
            model, entry.inputs, to, {w: d.path for w, d in done.items()}, bool(done[model.space.largest].note)
        )
    rows = Table(
        "width", "bytes", "difference", "ms", "ms / full", "MACs / full", title=f"{name} {INPUTS[name]} to {to}"
    )
    full = done[model.space.largest]
    for w, d in done.items():
        share = f"{spans[w] / spans[full.width]:.2f}"
        rows.add_row(
            str(w), f"{d.bytes:,}", f"{d.difference:.1e}", f"{spans[w] * 1e3:.3f}", share, f"{d.macs / full.macs:.2f}"
        )
    if full.note:
        rows.caption = full.note
    return rows


def timed(model: ElasticModel, inputs: tuple, to: str, paths: dict, step: bool) -> dict:
    """Return the best median of a call at each width."""
    with one_thread():
        runs = {w: FORMATS[to].open_file(path)[0] for w, path in paths.items()}
        template = model.blueprint.template
        examples = {w: fixed(Trial(model.cut(w).eval(), template, inputs, True, step).plain()).example for w in paths}
        turns = [{w: latency(run, examples[w]) for w, run in runs.items()} for _ in range(TURNS)]
    return {w: min(turn[w] for turn in turns) for w in paths}


if __name__ == "__main__":
    main()
