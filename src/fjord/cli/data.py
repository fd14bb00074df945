"""`fjord data`: what a recipe's data comes to."""

from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from fjord.cli.runs import Recipe, Settings
from fjord.core.seeding import derive_seed
from fjord.data.cache import cache_folder
from fjord.data.federated import FederatedData, PartitionedData
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.recipes.paper import RECIPES

out = Console(highlight=False)


def data(recipe: Recipe = "demo", settings: Settings = None) -> None:
    """Load a recipe's data; print its clients, examples and shapes."""
    experiment = apply_settings(find_recipe(recipe)(), settings or [])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(experiment.seed, "data"))
        found = experiment.data(experiment.seed)
    table = Table("what", "it comes to", title=recipe)
    for what, value in _described(found):
        table.add_row(what, value)
    out.print(table)
    if recipe in RECIPES:
        out.print(f"Decoded data is kept in {cache_folder()}", markup=False, soft_wrap=True)


def _described(found: FederatedData) -> list[tuple[str, str]]:
    counts = sorted(_sizes(found))
    inputs, targets = found.test.batch(0, 1)
    owned = int((found.test.owners >= 0).sum())
    return [
        ("clients", f"{len(counts):,}"),
        ("training examples", f"{sum(counts):,}"),
        ("examples of a client", f"{counts[0]:,} to {counts[-1]:,}, median {median(counts):g}"),
        ("test examples", f"{len(found.test.inputs):,}, {owned:,} of them held out from a client"),
        ("an input", f"{tuple(inputs.shape[1:])} {str(inputs.dtype).removeprefix('torch.')}"),
        ("a target", f"{tuple(targets.shape[1:])} {str(targets.dtype).removeprefix('torch.')}"),
        ("largest class number", str(int(found.test.targets.max()))),
    ]


def _sizes(found: FederatedData) -> list[int]:
    if isinstance(found, PartitionedData):
        return [len(rows) for rows in found.rows]
    return [len(found.examples(client)[0]) for client in range(found.num_clients)]
