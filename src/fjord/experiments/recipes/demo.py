"""The demo: the paper's CNN over unequal devices, on generated characters of many writers."""

from functools import partial

from fjord.data.writers import writers
from fjord.experiments.experiment import Experiment
from fjord.models import femnist_cnn


def demo() -> Experiment:
    """Return FjORD with distillation over five tiers: 200 writers, 240 rounds, about a minute."""
    return Experiment(
        name="demo",
        model=femnist_cnn,
        data=partial(writers, num_clients=200, examples=200),
        method="fjord-kd",
        num_rounds=240,
    )
