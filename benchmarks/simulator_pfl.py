"""FedAvg by pfl (pfl-research), one of the tools of `benchmarks.simulators`.

`SimulatedBackend` with `FederatedAveraging`; the clients' datasets are made once, so that pfl's
cache of their batches serves every round. One process by default; under torchrun pfl splits each
cohort over the processes and sums by gloo. No evaluation after the first round.
"""

import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.simulator_task import BATCH, CLIENTS, COHORT, LR, accuracy, arguments, read, report
from fjord.models import femnist_cnn


class Net(nn.Module):
    """The CNN with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = femnist_cnn()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores."""
        return self.net(inputs)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return what a client minimises."""
        return F.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Weighted]:
        """Return what a client reports; asked for in the first round only."""
        return {"loss": Weighted(float(self.loss(inputs, targets)) * len(inputs), len(inputs))}


class Marks(TrainingProcessCallback):
    """Notes the end of each round."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the time."""
        self.marks.append(time.time())
        return False, Metrics()


def population(path: str, seed: int) -> FederatedDataset:
    """Return the clients in random order, in turn, as pfl advises: no cohort repeats a client."""
    data = read(path)
    pairs = zip(data["inputs"], data["targets"], strict=True)
    datasets = [PyTorchTensorDataset(pair, user_id=str(i)) for i, pair in enumerate(pairs)]
    order = random.Random(seed).sample(range(CLIENTS), CLIENTS)
    return FederatedDataset(datasets.__getitem__, get_user_sampler("minimize_reuse", order))


def main() -> None:
    torch.set_num_threads(1)
    asked, callback = arguments(), Marks()
    np.random.seed(asked.seed)  # noqa: NPY002  (pfl draws from numpy's global generator, alike in every process)
    torch.manual_seed(asked.seed)
    net, users = Net(), population(asked.data, asked.seed)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=asked.rounds + 1,
            evaluation_frequency=asked.rounds
            + 2,  # in the first round, which is warm-up, and never again
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(users, users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=BATCH,
            local_num_epochs=1,
            local_learning_rate=LR,
            local_max_grad_norm=None,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=256),
        callbacks=[callback],
    )
    if pytorch_ops.distributed.global_rank == 0:
        assert pytorch_ops.distributed.world_size == asked.workers
        report(asked.started, callback.marks, accuracy(net, asked.data), ("pfl",))
    sys.stdout.flush()
    os._exit(0)  # threads that torchrun's processes leave behind abort some of them as they end


if __name__ == "__main__":
    main()
