"""`fjord data`: how many clients and examples a recipe's data has."""

from statistics import median

import torch
from torch import Tensor

from fjord.cli.runs import Recipe, Settings
from fjord.cli.tables import print_line, print_table
from fjord.core.seeding import derive_seed
from fjord.data.cache import cache_folder
from fjord.data.federated import FederatedData, PartitionedData
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.recipes.paper import RECIPES


def describe_data(recipe: Recipe = "demo", settings: Settings = None) -> None:
    """Load a recipe's data; print its clients, examples and shapes."""
    experiment = apply_settings(find_recipe(recipe)(), settings or [])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(experiment.seed, "data"))
        data = experiment.data(experiment.seed)
    print_table(["what", "it comes to"], _data_rows(data).items(), title=recipe)
    if recipe in RECIPES:
        print_line(f"Decoded data is kept in {cache_folder()}")


def _data_rows(data: FederatedData) -> dict[str, str]:
    counts = sorted(_client_sizes(data))
    inputs, targets = data.test.batch(0, 1)
    owned = int((data.test.owners >= 0).sum())
    return {
        "clients": f"{len(counts):,}",
        "training examples": f"{sum(counts):,}",
        "examples of a client": f"{counts[0]:,} to {counts[-1]:,}, median {median(counts):g}",
        "test examples": f"{len(data.test.inputs):,}, {owned:,} of them held out from a client",
        "an input": _format_tensor(inputs),
        "a target": _format_tensor(targets),
        "largest class number": str(int(data.test.targets.max())),
    }


def _format_tensor(batch: Tensor) -> str:
    """Return shape and type of one example of a batch."""
    shape = tuple(batch.shape[1:])
    return f"{shape} {str(batch.dtype).removeprefix('torch.')}"


def _client_sizes(data: FederatedData) -> list[int]:
    if isinstance(data, PartitionedData):
        return [len(rows) for rows in data.rows]
    sizes = []
    for client in range(data.num_clients):
        inputs, _ = data.examples(client)
        sizes.append(len(inputs))
    return sizes
