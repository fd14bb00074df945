"""FedAvg as a Flower app of its own, for `benchmarks.flower`: what a user of Flower would write.

It imports nothing of this library. The strategy is Flower's own; only its training phase is used.
"""

import json
import os
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file
from torch import nn

BATCH, LR = 16, 0.1
client, server = ClientApp(), ServerApp()


def net() -> nn.Module:
    """Return the CNN of the paper's FEMNIST task."""
    first = [nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(20 * 4 * 4, 62))


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train this node's client for an epoch."""
    torch.set_num_threads(1)
    data, mine = load_file(os.environ["BENCHMARK_DATA"]), int(context.node_config["partition-id"])
    inputs, targets = data["inputs"][mine], data["targets"][mine]
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    total = torch.zeros(())
    for rows in torch.randperm(len(inputs)).split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    metrics = MetricRecord({"num-examples": len(inputs), "loss": float(total)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run as many rounds as asked, and write down when each was over."""
    from flwr.serverapp.strategy import FedAvg

    marks: list[float] = []
    strategy = FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net().state_dict()),
        num_rounds=int(str(context.run_config["settings"]).partition("=")[2]),
        evaluate_fn=lambda number, arrays: marks.append(
            time.time()
        ),  # before the first round and after each
    )
    rounds = [end - begin for begin, end in pairwise(marks)]
    Path(str(context.run_config["output"])).write_text(json.dumps(rounds))
