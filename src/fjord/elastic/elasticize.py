"""Turn an ordinary module into an elastic model, after its plan has been proved."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch._ops import OpOverloadPacket

from fjord.core.errors import UserError
from fjord.core.width import WidthLike, WidthSpace, as_space, uniform_widths
from fjord.elastic.batchnorm import BatchNormMode
from fjord.elastic.model import ElasticModel
from fjord.elastic.module_tensors import named_tensors, without_weights
from fjord.elastic.plan_search import PlanSearch
from fjord.elastic.submodel.blueprint import ModelFactory
from fjord.elastic.trace.example_inputs import as_input_tuple
from fjord.elastic.trace.rules import RuleFunction


def elasticize(
    model: nn.Module,
    example_inputs: Any,
    *,
    widths: WidthSpace | Iterable[WidthLike] | None = None,
    freeze: str | Iterable[str] = (),
    round_to: int = 1,
    norms: BatchNormMode = "layers",
    rules: Mapping[OpOverloadPacket, RuleFunction] | None = None,
    factory: ModelFactory | None = None,
) -> ElasticModel:
    """Find the unit families of a model from its own graph and return it as an elastic model.

    `widths` is P with D_P, or a list of equally likely widths (default uniform-5); `freeze` keeps
    the units of layers whole, by name or pattern; `round_to` rounds channel counts up to a
    multiple; `rules` adds or replaces operator rules; `factory` builds submodels itself from the
    kept units of each family. The model is copied.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
    >>> elastic = elasticize(model, torch.randn(1, 4))
    >>> elastic.cut("2/5")[0]
    Linear(in_features=4, out_features=4, bias=True)
    """
    _check_options(model, round_to, norms)
    inputs = as_input_tuple(example_inputs)
    space = uniform_widths(5) if widths is None else as_space(widths)
    patterns = (freeze,) if isinstance(freeze, str) else tuple(freeze)
    search = PlanSearch(
        model=model,
        inputs=inputs,
        space=space,
        freeze=patterns,
        round_to=round_to,
        rules=dict(rules or {}),
        factory=factory,
    )
    blueprint, plan = search.find_plan()
    blueprint = blueprint.on(without_weights(model))
    return ElasticModel.from_full(blueprint, plan, space, norms, named_tensors(model))


def _check_options(model: nn.Module, round_to: int, norms: BatchNormMode) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model must be a torch module, not {type(model).__name__}")
    if type(round_to) is not int or round_to < 1:
        raise UserError(f"round_to={round_to!r} must be a whole number of at least 1")
    if norms not in ("layers", "statistics", "shared"):
        raise UserError(f"norms={norms!r} must be 'layers', 'statistics' or 'shared'")
