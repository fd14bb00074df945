"""Exported files beside their source, and their latency: `python -m benchmarks.export [FORMAT]`.

The paper's three models at every width of uniform-5, by default in all formats that are installed:
the largest difference from the submodel in torch, bytes, and the latency of one example with one
thread, over that at full width and beside the ratio of multiply-accumulates. Widths take turns, and
the best of several medians counts.
"""

import sys
import tempfile
from dataclasses import dataclass, field
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

SHAPES = {"resnet18": "1x3x32x32", "cnn": "1x1x28x28", "rnn": "1x80"}
TURNS = 3
NORM_BATCHES = 20
COLUMNS = ("width", "bytes", "difference", "ms", "ms / full", "MACs / full")


@dataclass(frozen=True)
class FileCase:
    """One file, how it is run, and an input for it."""

    exported: ExportedModel
    run: RunFile
    example: tuple[Tensor, ...]


@dataclass(frozen=True)
class ModelFiles:
    """One model in one format at every width."""

    title: str
    cases: list[FileCase] = field(default_factory=list)

    def best_latencies(self) -> list[float]:
        """Time the files in turn; return the best median of each."""
        best = [float("inf")] * len(self.cases)
        with one_thread():
            for _ in range(TURNS):
                for i, case in enumerate(self.cases):
                    best[i] = min(best[i], measure_latency(case.run, case.example))
        return best

    def latency_table(self) -> Table:
        """Time the files and return a table."""
        latencies = self.best_latencies()
        full = self.cases[-1].exported
        table = Table(*COLUMNS, title=self.title, caption=full.note)
        for case, seconds in zip(self.cases, latencies, strict=True):
            exported = case.exported
            table.add_row(
                str(exported.width),
                f"{exported.bytes:,}",
                f"{exported.difference:.1e}",
                f"{seconds * 1e3:.3f}",
                f"{seconds / latencies[-1]:.2f}",
                f"{exported.macs / full.macs:.2f}",
            )
        return table


def main() -> None:
    console = Console(width=110, highlight=False)
    formats = sys.argv[1:] or installed_formats()
    with tempfile.TemporaryDirectory() as folder:
        written = []
        for to in formats:
            for name in SHAPES:
                written.append(write_files(name, to, Path(folder)))
        # Only after all were written, so that nothing else runs while they are timed.
        for files in written:
            console.print(files.latency_table())


def installed_formats() -> list[str]:
    installed = []
    for name, export_format in FORMATS.items():
        missing = export_format.missing_packages
        if missing:
            print(f"left out: {name}, which needs {', '.join(missing)}")
        else:
            installed.append(name)
    return installed


def write_files(name: str, to: str, folder: Path) -> ModelFiles:
    torch.manual_seed(0)
    entry = find_model(name, SHAPES[name])
    model = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    measure_norms(model, entry)
    export_format = FORMATS[to]
    files = ModelFiles(f"{name} {SHAPES[name]} to {to}")
    for width in model.space.widths:
        label = str(width).replace("/", "of")
        path = folder / f"{name}-{label}{export_format.suffix}"
        exported = fjord.export_model(model, width, path, entry.inputs, to=to)
        run, _ = export_format.open_file(path)
        net = model.cut(width).eval()
        trial = ExportTrial(net, entry.model, entry.inputs, True, bool(exported.note))
        example = fixed_inputs(trial.plain_network()).example
        files.cases.append(FileCase(exported, run, example))
    return files


@torch.no_grad()
def measure_norms(model: ElasticModel, entry: CatalogEntry) -> None:
    """Let BatchNorm see some data: without, all outputs would be about zero, and agree."""
    model.train()
    for width in model.space.widths:
        net = model.at(width)
        for seed in range(NORM_BATCHES):
            net(*random_inputs(entry.model, entry.inputs, 8, seed))
    model.eval()


if __name__ == "__main__":
    main()
