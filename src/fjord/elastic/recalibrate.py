"""BatchNorm statistics for submodels that were not trained, from a few unlabelled batches.

A submodel of a width outside P, or whose layers have different widths, sees other activations than
any BatchNorm layer was trained on. Its weights are right; only running means and variances have to
be measured anew.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fjord.core.errors import UserError
from fjord.core.width import Widths
from fjord.elastic.batchnorm import batchnorm_layers, batchnorm_tensors
from fjord.elastic.model import ElasticModel
from fjord.elastic.tensor_key import TensorKey

A = torch.ops.aten
InputBatches = Iterable[Any]
"""Batches: a tensor each, or a pair whose first item is the inputs; labels and such are ignored."""


def recalibrate(
    model: ElasticModel,
    width: Widths,
    batches: InputBatches,
) -> None:
    """Measure the BatchNorm statistics of a submodel and store them in the model.

    They are the mean over the batches of each batch's mean and unbiased variance, and are saved
    with the weights. A width of P that has its own statistics gets those replaced. Measure again
    after further training. Does nothing if the model has no BatchNorm layers.
    """
    if not has_statistics(model):
        return
    net = uncalibrated_submodel(model, width)
    statistics = measure_statistics(model, net, batches)
    if model.norms == "shared" or not is_trained(model, width):
        model.set_statistics(width, statistics)
        return
    widths = model.plan.family_widths(width)
    with torch.no_grad():
        for name, value in statistics.items():
            key = str(TensorKey(name, widths[""]))
            model.tensors[key].copy_(value)


def has_statistics(model: ElasticModel) -> bool:
    """Return whether a model has BatchNorm layers with running statistics."""
    return bool(batchnorm_tensors(model.blueprint.template, "statistics"))


def is_trained(model: ElasticModel, width: Widths) -> bool:
    """Return whether all layers have one width, and it is one of P."""
    widths = set(model.plan.family_widths(width).values())
    if len(widths) > 1:
        return False
    return widths.pop() in model.space.widths


def uncalibrated_submodel(model: ElasticModel, width: Widths) -> nn.Module:
    """Return a cut whose BatchNorm statistics are still to be measured, without a warning."""
    widths = model.plan.family_widths(width)
    units = model.plan.leading_units(widths)
    tensors = model.cut_tensors(widths, warn=False)
    return model.blueprint.build(tensors, model.plan, units).eval()


@torch.no_grad()
def measure_statistics(
    model: ElasticModel,
    net: nn.Module,
    batches: InputBatches,
) -> dict[str, Tensor]:
    """Return the BatchNorm statistics of a submodel over some batches.

    The submodel has them too afterwards, and is in evaluation mode. A layer that no batch went
    through keeps the statistics it had.
    """
    names = batchnorm_tensors(model.blueprint.template, "statistics")
    buffers = {name: tensor for name, tensor in net.named_buffers() if name in names}
    before = {name: tensor.clone() for name, tensor in buffers.items()}
    rates = _update_rates(model.blueprint.template)
    _train_norms(net)
    totals, count = _sum_statistics(net, buffers, rates, batches)
    net.eval()
    if not count:
        raise UserError(
            "batches: there is nothing to measure on, give at least one batch of inputs"
        )
    for name, tensor in buffers.items():
        was_run = bool(totals[_counter_name(name)] > 0)
        mean = totals[name] / count if was_run else before[name]
        _set_statistic(name, tensor, mean, count)
    return {name: tensor.clone() for name, tensor in buffers.items()}


def _sum_statistics(
    net: nn.Module,
    buffers: dict[str, Tensor],
    rates: dict[str, float],
    batches: InputBatches,
) -> tuple[dict[str, Tensor], int]:
    """Return the sum over batches of each batch's statistics, and the number of batches.

    Each batch starts from statistics of zero, so that their values afterwards, divided by the share
    that a layer takes from a batch, are those of the batch alone. This holds for modules and for
    graphs, whose rates cannot be changed.
    """
    totals = {}
    for name, tensor in buffers.items():
        totals[name] = torch.zeros_like(tensor, dtype=torch.float64)
    count = 0
    with torch.random.fork_rng(devices=[]), _NoDropout():
        torch.manual_seed(0)  # whatever else a graph draws is the same each time
        for batch in batches:
            for tensor in buffers.values():
                tensor.zero_()
            _run_batch(net, batch)
            for name in totals:
                share = _batch_share(buffers, name, rates)
                totals[name] += buffers[name] / share
            count += 1
    return totals, count


class _NoDropout(TorchFunctionMode):
    """Replaces dropout by its mean: a graph has operations for it, but no layers to switch off."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        if func is A.native_dropout.default:
            kept = torch.ones_like(args[0], dtype=torch.bool)
            return args[0], kept
        if func is A.bernoulli.p:
            return torch.full_like(args[0], args[1])
        return func(*args, **(kwargs or {}))


def _set_statistic(
    name: str,
    tensor: Tensor,
    mean: Tensor,
    count: int,
) -> None:
    """Write a measured statistic into its buffer."""
    if not bool(mean.isfinite().all()):
        raise UserError(
            f"batches: the statistics {name} are not finite; are the inputs, and the weights?"
        )
    tensor.copy_(mean)
    if name.endswith("num_batches_tracked"):
        tensor.fill_(count)


def _counter_name(name: str) -> str:
    """Return the name of the batch counter of the layer that a statistic belongs to.

    >>> _counter_name("layer1.bn.running_mean"), _counter_name("running_var")
    ('layer1.bn.num_batches_tracked', 'num_batches_tracked')
    """
    path, dot, _ = name.rpartition(".")
    return f"{path}{dot}num_batches_tracked"


def _update_rates(template: nn.Module) -> dict[str, float]:
    """Return for each BatchNorm layer the share of a batch in the running statistics."""
    rates = {}
    for path, norm in batchnorm_layers(template).items():
        rates[path] = 1.0 if norm.momentum is None else norm.momentum
    return rates


def _batch_share(
    buffers: dict[str, Tensor],
    name: str,
    rates: dict[str, float],
) -> float:
    """Return the share of a batch in a statistic, which one batch may have updated repeatedly."""
    path, _, leaf = name.rpartition(".")
    passes = int(buffers[_counter_name(name)])
    rate = rates[path]
    if leaf == "num_batches_tracked" or not passes or rate == 1:
        return 1.0
    if rate == 0:
        raise UserError(f"{path}: a BatchNorm layer with momentum 0 never takes in a batch")
    return float(1 - (1 - rate) ** passes)


def _train_norms(net: nn.Module) -> None:
    """Put BatchNorm layers in training mode and leave the rest in evaluation mode.

    A graph has no layers, and is put in training mode as a whole.
    """
    norms = batchnorm_layers(net)
    if not norms:
        net.train()
    for norm in norms.values():
        norm.train()


def _run_batch(net: nn.Module, batch: Any) -> None:
    """Run a network on the inputs of a batch."""
    inputs = batch
    if isinstance(batch, tuple | list):
        inputs = batch[0]
    if isinstance(inputs, tuple | list):
        net(*inputs)
    else:
        net(inputs)
