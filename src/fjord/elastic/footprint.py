"""The cost of each width: multiply-accumulates, parameters, bytes, training memory (Table 1b)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from fjord.core.width import Width, WidthLike, Widths, parse_width
from fjord.elastic.model import ElasticModel
from fjord.elastic.module_tensors import named_tensors, without_weights
from fjord.elastic.submodel.blueprint import as_parameters_like

CONVENTION = (
    "MACs: multiply-accumulates of convolutions, linear and recurrent layers and attention for one "
    "example, at the input size given; as in the paper's table, the bias of a convolution adds one "
    "per output and an LSTM 16 element-wise operations per unit and step. "
    "Weights: without norm layers and embeddings, as in the paper; parameters: all of them. "
    "Bytes: all tensors of the submodel, as sent to a device. Training memory: weights, gradients "
    "and the values kept for the backward pass, without optimizer state and the allocator's "
    "overhead."
)
LSTM_ELEMENTWISE = 16
"""Element-wise operations of an LSTM per unit and step.

Two biases and one activation for each of 4 gates, 3 operations on the cell, 1 activation.
"""
NORMS_AND_EMBEDDINGS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.Embedding,
)


@dataclass(frozen=True)
class Footprint:
    """The cost of one submodel."""

    width: Width
    macs: int
    weights: int
    parameters: int
    bytes: int
    training_bytes: int


def measure_footprints(
    model: ElasticModel,
    inputs: tuple[Any, ...],
    widths: Iterable[WidthLike] | None = None,
    batch: int = 1,
) -> list[Footprint]:
    """Return the footprint at each width; training memory is that of a batch."""
    if widths is None:
        widths = model.space.widths
    footprints = []
    for width_like in widths:
        width = parse_width(width_like)
        footprints.append(measure_footprint(model.cut(width), width, inputs, batch))
    return footprints


def submodel_macs(
    model: ElasticModel,
    width: Widths,
    inputs: tuple[Any, ...],
) -> int:
    """Return the multiply-accumulates of one example at any width, without copying weights."""
    template = model.blueprint.template
    units = model.plan.leading_units(width)
    full = named_tensors(template)
    tensors = {}
    for name, shape in model.plan.cut_shapes(units).items():
        dtype = full[name].dtype
        tensors[name] = torch.empty(shape, dtype=dtype, device="meta")
    parameters = as_parameters_like(tensors, template)
    net = model.blueprint.build(parameters, model.plan, units)
    return count_macs(net.eval(), on_meta(inputs, 1))


def submodel_bytes(model: ElasticModel, width: Widths) -> int:
    """Return the bytes of all tensors of a submodel of any width."""
    full = named_tensors(model.blueprint.template)
    units = model.plan.leading_units(width)
    total = 0
    for name, shape in model.plan.cut_shapes(units).items():
        total += prod(shape) * full[name].element_size()
    return total


def measure_footprint(
    net: nn.Module,
    width: Width,
    inputs: tuple[Any, ...],
    batch: int = 1,
) -> Footprint:
    """Measure one plain network without running it.

    It is copied to the meta device, where tensors have shapes but no data.
    """
    parameters = list(net.parameters())
    num_parameters = _count_elements(parameters)
    num_bytes = _count_bytes([*parameters, *net.buffers()])
    gradient_bytes = _count_bytes(p for p in parameters if p.requires_grad)
    meta_net = without_weights(net).train()
    macs = count_macs(meta_net, on_meta(inputs, 1))
    activation_bytes = _training_bytes(meta_net, inputs, batch)
    return Footprint(
        width=width,
        macs=macs,
        weights=num_parameters - _count_elements(_norms_and_embeddings(net)),
        parameters=num_parameters,
        bytes=num_bytes,
        training_bytes=num_bytes + gradient_bytes + activation_bytes,
    )


def _count_elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _norms_and_embeddings(net: nn.Module) -> Iterable[nn.Parameter]:
    """Yield the parameters that the paper does not count as weights."""
    for module in net.modules():
        if isinstance(module, NORMS_AND_EMBEDDINGS):
            yield from module.parameters(recurse=False)


def _training_bytes(
    net: nn.Module,
    inputs: tuple[Any, ...],
    batch: int,
) -> int:
    """Return the bytes that a batch of this size keeps for the backward pass."""
    try:
        return saved_bytes(net, on_meta(inputs, batch))
    except ValueError:
        # BatchNorm1d cannot train on one example; the bytes grow linearly with the batch.
        if batch != 1:
            raise
        two = saved_bytes(net, on_meta(inputs, 2))
        three = saved_bytes(net, on_meta(inputs, 3))
        return 2 * two - three


def on_meta(inputs: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
    """Return inputs without data and with the given batch size."""

    def without_data(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape = list(value.shape)
        if shape:
            shape[0] = batch
        return torch.empty(shape, dtype=value.dtype, device="meta")

    moved: tuple[Any, ...] = pytree.tree_map(without_data, inputs)
    return moved


def count_macs(net: nn.Module, inputs: tuple[Any, ...]) -> int:
    """Return the multiply-accumulates of one forward pass, run on the device of the inputs."""
    lstm_operations: list[int] = []
    hooks = []
    for module in net.modules():
        if isinstance(module, nn.LSTM):
            hooks.append(module.register_forward_hook(_count_lstm(lstm_operations)))
    mode = net.training
    net.eval()  # BatchNorm1d cannot train on one example
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution: _convolution_flops}
    )
    with _input_device(inputs), torch.no_grad(), counter:
        net(*inputs)
    net.train(mode)
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops() // 2 + sum(lstm_operations)


def _input_device(inputs: tuple[Any, ...]) -> torch.device:
    """Return the device of the first tensor among the inputs."""
    for value in pytree.tree_leaves(inputs):
        if isinstance(value, Tensor):
            return value.device
    return torch.device("cpu")


def _convolution_flops(
    x: Any, weight: Any, bias: Any, *rest: Any, out_shape: Any = None, **_: Any
) -> int:
    """Count a convolution with its bias, which torch leaves out."""
    transposed = rest[3]
    flops = int(conv_flop_count(x, weight, out_shape, transposed=transposed))
    if bias is not None:
        flops += 2 * prod(out_shape)
    return flops


def _count_lstm(counts: list[int]) -> Callable[..., None]:
    """Return a hook that appends the element-wise operations of an LSTM to a list."""

    def hook(
        module: nn.LSTM,
        inputs: tuple[Tensor, ...],
        output: tuple[Tensor, Any],
    ) -> None:
        states = output[0]
        positions = states.numel() // states.shape[-1]
        directions = 2 if module.bidirectional else 1
        cells = module.hidden_size * module.num_layers * directions
        counts.append(LSTM_ELEMENTWISE * cells * positions)

    return hook


def saved_bytes(net: nn.Module, inputs: tuple[Any, ...]) -> int:
    """Return the bytes a forward pass keeps for the backward pass, each storage counted once."""
    tensors = [*net.parameters(), *net.buffers()]
    own = {tensor.untyped_storage()._cdata for tensor in tensors}
    # Keeping the storages themselves prevents that their addresses are reused.
    saved: dict[int, torch.UntypedStorage] = {}

    def save_storage(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(save_storage, lambda tensor: tensor)
    with torch.device("meta"), hooks:
        net(*inputs)
    return sum(storage.nbytes() for storage in saved.values())
