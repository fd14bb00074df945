"""Exported files against their source, and what a call takes: `python -m benchmarks.export [FORMAT ...]`.

The paper's three models at every width of uniform-5, by default in all formats that are installed: the largest
difference from the submodel in torch, bytes, and the latency of one example with one thread, over that at full width
and beside the ratio of multiply-accumulates. Widths take turns, and the best of several medians counts.
"""

import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fjord
from fjord.core.threads import one_thread
from fjord.deploy.exports.export import ExportedModel
from fjord.deploy.exports.formats import FORMATS
from fjord.deploy.exports.plain import RunFile, fixed_inputs
from fjord.deploy.exports.trial import ExportTrial, measure_latency, random_inputs
from fjord.elastic.model import ElasticModel
from fjord.models.catalog import CatalogEntry, find_model

INPUTS = {"resnet18": "1x3x32x32", "cnn": "1x1x28x28", "rnn": "1x80"}
TURNS = 3


@dataclass(frozen=True)
class Written:
    """One model in one format at every width."""

    title: str
    files: list[ExportedModel]
    runs: list[tuple[RunFile, tuple[Tensor, ...]]]

    def table(self) -> Table:
        """Time the files in turn."""
        with one_thread():
            turns = [
                [measure_latency(run, example) for run, example in self.runs] for _ in range(TURNS)
            ]
        best = [min(spans) * 1e3 for spans in zip(*turns, strict=True)]
        full = self.files[-1]
        rows = Table(
            "width",
            "bytes",
            "difference",
            "ms",
            "ms / full",
            "MACs / full",
            title=self.title,
            caption=full.note,
        )
        for file, ms in zip(self.files, best, strict=True):
            shares = f"{ms / best[-1]:.2f}", f"{file.macs / full.macs:.2f}"
            rows.add_row(
                str(file.width), f"{file.bytes:,}", f"{file.difference:.1e}", f"{ms:.3f}", *shares
            )
        return rows


def main() -> None:
    console = Console(width=110, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        done = [
            write(model, to, Path(folder)) for to in sys.argv[1:] or installed() for model in INPUTS
        ]
        for (
            written
        ) in done:  # after all were written, so that nothing else runs while they are timed
            console.print(written.table())


def installed() -> list[str]:
    missing = {
        name: [p for p in form.packages if find_spec(p) is None] for name, form in FORMATS.items()
    }
    for name, packages in missing.items():
        if packages:
            print(f"left out: {name}, which needs {', '.join(packages)}")
    return [name for name, packages in missing.items() if not packages]


def write(name: str, to: str, folder: Path) -> Written:
    torch.manual_seed(0)
    entry = find_model(name, INPUTS[name])
    model = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    settle(model, entry)
    files, runs = [], []
    for width in model.space.widths:
        path = folder / f"{name}-{str(width).replace('/', 'of')}{FORMATS[to].suffix}"
        files.append(fjord.export_model(model, width, path, entry.inputs, to=to))
        trial = ExportTrial(
            model.cut(width).eval(), entry.model, entry.inputs, True, bool(files[-1].note)
        )
        runs.append((FORMATS[to].open_file(path)[0], fixed_inputs(trial.plain_network()).example))
    return Written(f"{name} {INPUTS[name]} to {to}", files, runs)


@torch.no_grad()
def settle(model: ElasticModel, entry: CatalogEntry) -> None:
    """Let BatchNorm see some data: with statistics of nothing all outputs are about zero, and agree."""
    model.train()
    for width in model.space.widths:
        for seed in range(20):
            model.at(width)(*random_inputs(entry.model, entry.inputs, 8, seed))
    model.eval()


if __name__ == "__main__":
    main()
