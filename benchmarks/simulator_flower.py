"""FedAvg by Flower's simulation on Ray, one of the tools of `benchmarks.simulators`.

Flower's own FedAvg strategy; a client is a `ClientApp` whose handler is a plain PyTorch loop over
slices of tensors (a DataLoader would be slower). One CPU and one thread per client, so that as many
run at once as there are workers. `run_simulation` starts the same runtime as `flwr run`, without a
daemon that outlives it. No client evaluation.
"""

import time

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.simulator_task import BATCH, CLIENTS, COHORT, LR, accuracy, arguments, read, report
from fjord.models import femnist_cnn

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for an epoch."""
    torch.set_num_threads(1)
    data, client = (
        read(str(message.content["config"]["data"])),
        int(context.node_config["partition-id"]),
    )
    inputs, targets = data["inputs"][client], data["targets"][client]
    net = femnist_cnn()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    total = torch.zeros(())
    for rows in torch.randperm(len(inputs)).split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    metrics = MetricRecord({"num-examples": len(inputs), "loss": float(total)})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message
    )


def main() -> None:
    torch.set_num_threads(1)
    asked, marks, last = arguments(), list[float](), list[ArrayRecord]()

    def mark(server_round: int, arrays: ArrayRecord) -> None:
        """Note the time; Flower calls it before the first round and after each."""
        marks.append(time.time())
        last[:] = [arrays]

    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        torch.manual_seed(asked.seed)
        strategy = FedAvg(
            fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(femnist_cnn().state_dict()),
            num_rounds=asked.rounds + 1,
            train_config=ConfigRecord({"data": asked.data}),
            evaluate_fn=mark,
        )

    resources = {
        "init_args": {"num_cpus": asked.workers},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
    net = femnist_cnn()
    net.load_state_dict(last[0].to_torch_state_dict())
    report(asked.started, marks[1:], accuracy(net, asked.data), ("flwr", "ray"))


if __name__ == "__main__":
    # By its name, not as __main__: Ray then refers to the handler instead of copying it to its
    # actors with each message, and an actor keeps what it has read.
    from benchmarks.simulator_flower import main as importable

    importable()
