"""A model that cannot be made elastic raises one error that names the place; so does bad input."""

import pytest
import torch
from motifs import Residual, images
from torch import Tensor, nn

import fjord


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.head(y if y.sum() > 0 else -y)


class FixedTable(nn.Module):
    """The hidden width is hard-coded: a table of ten numbers is written in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x) * torch.arange(10.0))


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).sort(-1).values)


def test_a_width_hard_coded_in_forward_names_the_operation_and_the_line():
    with pytest.raises(fjord.ElasticityError) as raised:
        fjord.elasticize(FixedTable(), torch.randn(2, 6))
    text = str(raised.value)
    assert "FixedTable has no width that can be cut" in text
    assert "aten.mul.Tensor in the model itself (FixedTable)" in text
    assert "torch.arange(10.0)" in text
    assert "freeze=" in text
    assert "rules=" in text
    assert "factory=" in text


def test_a_path_that_depends_on_data_is_refused():
    with pytest.raises(
        fjord.ElasticityError,
        match=r"DataDependent cannot be traced: torch.export raised .* depends on the data",
    ):
        fjord.elasticize(DataDependent(), torch.randn(2, 6))


def test_positions_that_become_data_are_refused():
    with pytest.raises(
        fjord.ElasticityError, match=r"aten.sort turns positions into data .*Sorted"
    ):
        fjord.elasticize(Sorted(), torch.randn(2, 6))


class CustomOperation(nn.Module):
    """Uses an operation the library has no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.ops.fjord_tests.double(self.first(x)))


@torch.library.custom_op("fjord_tests::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return 2 * x


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_operation_without_a_rule_is_frozen_until_it_is_given_one():
    with pytest.raises(
        fjord.ElasticityError,
        match=r"there is no rule for fjord_tests.double.default in the model itself",
    ):
        fjord.elasticize(CustomOperation(), torch.randn(2, 6))
    elastic = fjord.elasticize(
        CustomOperation(),
        torch.randn(2, 6),
        rules={torch.ops.fjord_tests.double: lambda call: call.first},
    )
    assert elastic.cut("2/5").first.out_features == 4


def test_a_wrong_rule_is_caught_by_the_proof():
    with pytest.raises(
        fjord.ElasticityError, match="permuting the units of a family changes the output"
    ):
        fjord.elasticize(
            FixedTable(), torch.randn(2, 6), rules={torch.ops.aten.mul: lambda call: call.first}
        )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"freeze": ["nothing*"]}, r"freeze='nothing\*' names no layer of Residual; layers: stem"),
        ({"round_to": 0}, "round_to=0 must be a whole number of at least 1"),
        ({"norms": "none"}, "norms='none' must be 'layers', 'statistics' or 'shared'"),
    ],
)
def test_bad_options_are_named(options, says):
    with pytest.raises(ValueError, match=says):
        fjord.elasticize(Residual().double(), images(), **options)


@pytest.mark.parametrize("bad", [None, (), "x"])
def test_bad_examples_are_named(bad):
    with pytest.raises(ValueError, match="example_inputs must be"):
        fjord.elasticize(Residual(), bad)


@pytest.mark.parametrize("bad", ["0", "1.5", "abc", 1.5])
def test_bad_widths_are_refused_everywhere(bad):
    elastic = fjord.elasticize(Residual().double(), images())
    for use in (elastic.cut, elastic.at, elastic.cut_tensors, lambda w: elastic.cut({"stem": w})):
        with pytest.raises(ValueError, match="width"):
            use(bad)


def test_the_model_is_left_as_it_was():
    model = Residual().double().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    fjord.elasticize(model, images())
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
