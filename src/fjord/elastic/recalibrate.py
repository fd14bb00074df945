"""BatchNorm statistics for submodels that were not trained, from a few unlabelled batches.

A submodel of a width outside P, or whose layers have widths of their own, sees other activations than any BatchNorm
layer was trained on. Its weights are right; only running means and variances have to be measured anew.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fjord.core.errors import UserError
from fjord.core.width import Widths
from fjord.elastic.batchnorm import batchnorm_tensors
from fjord.elastic.model import ElasticModel
from fjord.elastic.tensor_key import TensorKey

A = torch.ops.aten
Inputs = Iterable[Any]
"""Batches: a tensor each, or a pair whose first part is the inputs; what else is in it (labels) is not looked at."""


def recalibrate(model: ElasticModel, width: Widths, batches: Inputs) -> None:
    """Measure the BatchNorm statistics of a submodel and keep them in the model, which saves them with its weights.

    They are the mean over the batches of each batch's mean and unbiased variance. A width of P that has statistics
    of its own gets those replaced. Measure again after further training. Without BatchNorm there is nothing to do.
    """
    if not has_statistics(model):
        return
    statistics = measure_statistics(model, uncalibrated_submodel(model, width), batches)
    widths = model.plan.family_widths(width)
    if model.norms != "shared" and is_trained(model, width):
        with torch.no_grad():
            for name, value in statistics.items():
                model.tensors[str(TensorKey(name, widths[""]))].copy_(value)
    else:
        model.set_statistics(width, statistics)


def has_statistics(model: ElasticModel) -> bool:
    """Say whether a model has BatchNorm layers with running statistics."""
    return bool(batchnorm_tensors(model.blueprint.template, "statistics"))


def is_trained(model: ElasticModel, width: Widths) -> bool:
    """Say whether all layers have one width, and it is one of P."""
    widths = set(model.plan.family_widths(width).values())
    return len(widths) == 1 and widths <= set(model.space.widths)


def uncalibrated_submodel(model: ElasticModel, width: Widths) -> nn.Module:
    """Return a cut whose BatchNorm statistics are still to be measured, and so no warning that they are not."""
    widths = model.plan.family_widths(width)
    kept = model.plan.leading_units(widths)
    tensors = model.cut_tensors(widths, warn=False)
    return model.blueprint.build(tensors, model.plan, kept).eval()


@torch.no_grad()
def measure_statistics(model: ElasticModel, net: nn.Module, batches: Inputs) -> dict[str, Tensor]:
    """Return the BatchNorm statistics of a submodel over some batches; the submodel holds them too, in eval mode.

    Each batch starts from statistics of zero, so that what a batch leaves, over the rate at which a layer takes
    it in, is that of the batch alone: this holds for modules and for graphs, whose rates cannot be changed.
    """
    names = batchnorm_tensors(model.blueprint.template, "statistics")
    held = {name: tensor for name, tensor in net.named_buffers() if name in names}
    before = {name: tensor.clone() for name, tensor in held.items()}
    rates = _rates(model.blueprint.template)
    total, count = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in held.items()}, 0
    _train_norms(net)
    with torch.random.fork_rng(devices=[]), _NoDropout():
        torch.manual_seed(0)  # what else a graph draws, it draws alike each time
        for batch in batches:
            for tensor in held.values():
                tensor.zero_()
            _run(net, batch)
            for name in total:
                total[name] += held[name] / _taken_in(held, name, rates)
            count += 1
    net.eval()
    if not count:
        raise UserError(
            "batches: there is nothing to measure on, give at least one batch of inputs"
        )
    for name, tensor in held.items():
        seen = bool(total[_counter(name)] > 0)
        _settle(name, tensor, total[name] / count if seen else before[name], count)
    return {name: tensor.clone() for name, tensor in held.items()}


class _NoDropout(TorchFunctionMode):
    """Leaves out dropout, and has the mean of what would be drawn: a graph has operations for it, and no layers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is A.native_dropout.default:
            return args[0], torch.ones_like(args[0], dtype=torch.bool)
        if func is A.bernoulli.p:
            return torch.full_like(args[0], args[1])
        return func(*args, **(kwargs or {}))


def _settle(name: str, tensor: Tensor, mean: Tensor, count: int) -> None:
    """Put a measured statistic in its place; a layer that no batch went through keeps what it had."""
    if not bool(mean.isfinite().all()):
        raise UserError(
            f"batches: the statistics {name} are not finite; are the inputs, and the weights?"
        )
    tensor.copy_(mean)
    if name.endswith("num_batches_tracked"):
        tensor.fill_(count)


def _counter(name: str) -> str:
    """Return the name of the count beside a statistic.

    >>> _counter("layer1.bn.running_mean"), _counter("running_var")
    ('layer1.bn.num_batches_tracked', 'num_batches_tracked')
    """
    path, dot, _ = name.rpartition(".")
    return f"{path}{dot}num_batches_tracked"


def _rates(template: nn.Module) -> dict[str, float]:
    norms = {
        path: m
        for path, m in template.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
    }
    return {path: 1.0 if norm.momentum is None else norm.momentum for path, norm in norms.items()}


def _taken_in(held: dict[str, Tensor], name: str, rates: dict[str, float]) -> float:
    """Return the share of a statistic that the batch made up, over as many passes through the layer as there were."""
    path, _, leaf = name.rpartition(".")
    passes = int(held[_counter(name)])
    rate = rates[path]
    if leaf == "num_batches_tracked" or not passes or rate == 1:
        return 1.0
    if rate == 0:
        raise UserError(f"{path}: a BatchNorm layer with momentum 0 never takes in a batch")
    return float(1 - (1 - rate) ** passes)


def _train_norms(net: nn.Module) -> None:
    """Let BatchNorm layers measure and the rest run as in evaluation; a graph has no layers and trains as a whole."""
    norms: list[nn.Module] = [
        m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    for module in norms or [net]:
        module.train()


def _run(net: nn.Module, batch: Any) -> None:
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    if isinstance(inputs, tuple | list):
        net(*inputs)
    else:
        net(inputs)
