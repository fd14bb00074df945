"""The paper's three tasks with centralised training, and the numbers of its appendix.

They are those of its hyperparameters for non-federated experiments: SGD with momentum 0.9 and a
step size of 0.1. The setting `method` is od, od-kd or single; `single` trains a model for each
width, and scores the full one with units left out at random as well (Fig. 3 and its extended
form).
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from fjord.experiments.central import CentralExperiment
from fjord.experiments.experiment import Experiment
from fjord.experiments.recipes import paper


def _central_task(name: str, task: Experiment, epochs: int) -> CentralExperiment:
    return CentralExperiment(
        name=name,
        model=task.model,
        data=task.data,  # type: ignore[arg-type]  # the paper's tasks are all of tensors
        freeze=task.freeze,
        norms=task.norms,
        metric=task.metric,
        epochs=epochs,
    )


def cifar10() -> CentralExperiment:
    """Return ResNet18 on all of CIFAR10: 300 epochs of 128, a tenth of the step at 150 and 225."""
    task = _central_task("cifar10-central", paper.cifar10(), 300)
    return replace(task, milestones=(Fraction(1, 2), Fraction(3, 4)))


def femnist() -> CentralExperiment:
    """Return the CNN on all of FEMNIST: 20 epochs of batches of 128."""
    return _central_task("femnist-central", paper.femnist(), 20)


def femnist_digits() -> CentralExperiment:
    """Return the CNN on all digits of FEMNIST: 20 epochs of batches of 128."""
    return _central_task("femnist-digits-central", paper.femnist_digits(), 20)


def emnist() -> CentralExperiment:
    """Return the CNN on EMNIST (the folder emnist_byclass): 20 epochs of batches of 128."""
    return _central_task("emnist-central", paper.emnist_skewed(), 20)


def shakespeare() -> CentralExperiment:
    """Return the RNN on all of Shakespeare: 50 epochs of batches of 32."""
    task = _central_task("shakespeare-central", paper.shakespeare(), 50)
    return replace(task, batch_size=32)


RECIPES: dict[str, Callable[[], CentralExperiment]] = {
    "cifar10-central": cifar10,
    "femnist-central": femnist,
    "femnist-digits-central": femnist_digits,
    "emnist-central": emnist,
    "shakespeare-central": shakespeare,
}
