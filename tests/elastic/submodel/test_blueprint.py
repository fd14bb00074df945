"""Submodels built by the user's factory."""

import pytest
import torch
from torch import Tensor, nn

import fjord


class Scaled(nn.Module):
    """The inner width stands in a Python number no rule can see: only a factory knows."""

    def __init__(self, inner: int = 10) -> None:
        super().__init__()
        self.first, self.head, self.scale = nn.Linear(6, inner), nn.Linear(inner, 3), 10 / 10

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x)) * self.scale


def test_a_factory_builds_submodels_itself():
    elastic = fjord.elasticize(
        Scaled(), torch.randn(2, 6), factory=lambda kept: Scaled(len(kept["first.weight[0]"]))
    )
    assert elastic.blueprint.route == "factory"
    assert isinstance(elastic.cut("2/5"), Scaled)
    assert elastic.cut("2/5").first.out_features == 4
    with pytest.raises(
        fjord.ElasticityError,
        match=r"factory: first.weight has shape \(10, 6\), the plan needs \(2, 6\)",
    ):
        fjord.elasticize(Scaled(), torch.randn(2, 6), factory=lambda kept: Scaled())
