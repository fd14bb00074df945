"""Are a run's models held back by their BatchNorm statistics? `python -m benchmarks.statistics RUN_FOLDER`.

Scores every model of a run on its test set as it was trained, and with statistics measured anew on training examples of
the first clients (weights stay as they are). In eFD and FD clients train random parts of a model, and the server
averages statistics that no single network has.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fjord
from fjord.data.federated import FederatedData
from fjord.evaluate import Tested, examine
from fjord.recipes.find import apply_settings, find_recipe
from fjord.runs import RunFolder

OUT, BATCH, CLIENTS = Console(highlight=False), 250, 10


def inputs(data: FederatedData) -> Iterator[Tensor]:
    """Yield batches of training examples as they are seen in tests."""
    for client in range(CLIENTS):
        yield from (data.prepare(part, None) for part in data.examples(client)[0].split(BATCH))


def accuracy(model: fjord.ElasticModel, data: FederatedData, width: fjord.Width) -> float:
    (parts,) = examine(model.eval(), data.test, [width], BATCH).values()
    return Tested.joined(parts).score().accuracy


def main(folder: Path) -> None:
    recipe = RunFolder(folder).config["recipe"]
    experiment = apply_settings(find_recipe(recipe["name"])(), recipe["set"])
    data = next(iter(experiment.federations())).data
    table = Table("model", "width", "as trained", "statistics measured anew", title=str(folder))
    for path in sorted(folder.glob("model*.safetensors")):
        model = fjord.load(path, experiment.model)
        for width in model.space.widths:
            before = accuracy(model, data, width)
            fjord.recalibrate(model, width, inputs(data))
            table.add_row(path.stem, str(width), f"{before:.2%}", f"{accuracy(model, data, width):.2%}")
    OUT.print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
