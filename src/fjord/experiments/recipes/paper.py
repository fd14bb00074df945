"""The paper's three federated tasks, with the numbers of its appendix.

They are those of its hyperparameters for federated experiments: 10 clients in each of 500 rounds,
one local epoch of plain SGD, and a tenth of the step size after 50% and 75% of the rounds, over
five equal tiers of devices (uniform-5, drop scale 1). The setting `data.source` names a folder or
another dataset of the hub; without it the folder FJORD_DATA is searched, then the hub.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial

from torch import nn

from fjord.data import cifar10 as cifar10_data
from fjord.data import femnist as femnist_data
from fjord.data import shakespeare as shakespeare_data
from fjord.data.federated import FederatedData
from fjord.experiments.experiment import Experiment
from fjord.models import cifar_resnet18, femnist_cnn, shakespeare_rnn


def _paper_task(
    name: str, model: Callable[[], nn.Module], data: Callable[[int], FederatedData]
) -> Experiment:
    return Experiment(
        name=name,
        model=model,
        data=data,
        method="fjord-kd",
        tiers="uniform-5",
        num_rounds=500,
        cohort_size=10,
        local_epochs=1,
        milestones=(Fraction(1, 2), Fraction(3, 4)),
        decay=0.1,
    )


def cifar10() -> Experiment:
    """Return ResNet18 on CIFAR10: 100 equal random clients, batches of 32, lr 0.1."""
    task = _paper_task("cifar10", cifar_resnet18, partial(cifar10_data.load, None))
    return replace(task, batch_size=32, lr=0.1, norms="layers")


def femnist() -> Experiment:
    """Return the CNN on FEMNIST: clients are writers, batches of 16, lr 0.1."""
    task = _paper_task("femnist", femnist_cnn, partial(femnist_data.load, None))
    return replace(task, batch_size=16, lr=0.1)


def femnist_digits() -> Experiment:
    """Return FEMNIST with the writers of digits alone (the folder femnist_digits), who are real."""
    return replace(femnist(), name="femnist-digits", data=partial(femnist_data.load_digits, None))


def emnist_skewed() -> Experiment:
    """Return a stand-in for FEMNIST: EMNIST (emnist_byclass) in 3,400 label-skewed clients."""
    return replace(femnist(), name="emnist-skewed", data=partial(femnist_data.load_skewed, None))


def shakespeare() -> Experiment:
    """Return the RNN on Shakespeare: clients are roles, batches of 4, lr 1.0, by perplexity."""
    task = _paper_task("shakespeare", shakespeare_rnn, partial(shakespeare_data.load, None))
    return replace(task, batch_size=4, lr=1.0, freeze=("embedding",), metric="perplexity")


RECIPES: dict[str, Callable[[], Experiment]] = {
    "cifar10": cifar10,
    "femnist": femnist,
    "femnist-digits": femnist_digits,
    "emnist-skewed": emnist_skewed,
    "shakespeare": shakespeare,
}
