"""Models that cannot be trained as clients train them."""

import pytest
import torch
from profiles import mlp, quick  # noqa: F401
from torch import nn

import fjord


def test_a_model_that_cannot_be_trained_as_clients_train_is_said():
    with pytest.raises(ValueError, match="inputs: clients train on one tensor"):
        fjord.profile_training(mlp())
    with pytest.raises(ValueError, match="scores"):
        fjord.profile_training(
            nn.Sequential(nn.Linear(12, 40), nn.Linear(40, 3), nn.Flatten(0)), torch.randn(2, 12)
        )
    with pytest.raises(ValueError, match=r"measure: width 1/3 is not one of 1/5, 2/5"):
        fjord.profile_training(mlp(), torch.randn(2, 12), measure=["1/3"])
    for wrong in ({"batch_size": -1}, {"batch_size": 0}, {"epochs": 0}, {"examples": 0}):
        ((name, value),) = wrong.items()
        with pytest.raises(
            ValueError, match=f"{name}={value} must be a whole number of at least 1"
        ):
            fjord.profile_training(mlp(), torch.randn(2, 12), **wrong)
