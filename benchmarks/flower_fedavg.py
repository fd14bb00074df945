"""FedAvg as a Flower app of its own, for `benchmarks.flower`: what a user of Flower would write.

It imports nothing from this library. The strategy is Flower's own; only its training phase is used.
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

BATCH_SIZE = 16
LR = 0.1
client = ClientApp()
server = ServerApp()


def make_model() -> nn.Module:
    """Return the CNN of the paper's FEMNIST task."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20 * 4 * 4, 62),
    )


@client.train()
def train_client(message: Message, context: Context) -> Message:
    """Train this node's client for an epoch."""
    torch.set_num_threads(1)
    data = load_file(os.environ["BENCHMARK_DATA"])
    partition = int(context.node_config["partition-id"])
    inputs = data["inputs"][partition]
    targets = data["targets"][partition]
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    total = torch.zeros(())
    for rows in torch.randperm(len(inputs)).split(BATCH_SIZE):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    metrics = MetricRecord({"num-examples": len(inputs), "loss": float(total)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@server.main()
def run_server(grid: Grid, context: Context) -> None:
    """Run as many rounds as asked, and write down when each was over."""
    from flwr.serverapp.strategy import FedAvg

    times: list[float] = []

    def note_time(server_round: int, arrays: ArrayRecord) -> None:
        """Note the time, as Flower calls this before the first round and after each."""
        times.append(time.time())

    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=3,
        min_available_nodes=3,
    )
    settings = str(context.run_config["settings"])
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        num_rounds=int(settings.partition("=")[2]),
        evaluate_fn=note_time,
    )
    seconds = [end - begin for begin, end in pairwise(times)]
    Path(str(context.run_config["output"])).write_text(json.dumps(seconds))
