"""What each width costs: multiply-accumulates, parameters, bytes and training memory (Table 1b)."""

from collections.abc import Iterable
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
    "MACs: multiply-accumulates of convolutions, linear and recurrent layers and attention for one example, "
    "at the input size given; as in the paper's table, the bias of a convolution adds one per output and an LSTM "
    "16 element-wise operations per unit and step. "
    "Weights: without norm layers and embeddings, as in the paper; parameters: all of them. "
    "Bytes: all tensors of the submodel, as sent to a device. Training memory: weights, gradients and the values "
    "kept for the backward pass, without optimizer state and the allocator's overhead."
)
LSTM_ELEMENTWISE = 16
"""Per unit and step: 2 biases and 1 activation for each of 4 gates, 3 operations on the cell, 1 activation."""


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
    chosen = model.space.widths if widths is None else [parse_width(w) for w in widths]
    return [measure_footprint(model.cut(width), width, inputs, batch) for width in chosen]


def submodel_macs(model: ElasticModel, width: Widths, inputs: tuple[Any, ...]) -> int:
    """Return the multiply-accumulates of one example at any width, also by layer, without copying weights."""
    kept = model.plan.leading_units(width)
    shapes = model.plan.cut_shapes(kept)
    kinds = named_tensors(model.blueprint.template)
    tensors = as_parameters_like(
        {
            name: torch.empty(shape, dtype=kinds[name].dtype, device="meta")
            for name, shape in shapes.items()
        },
        model.blueprint.template,
    )
    return count_macs(model.blueprint.build(tensors, model.plan, kept).eval(), on_meta(inputs, 1))


def submodel_bytes(model: ElasticModel, width: Widths) -> int:
    """Return the bytes of all tensors of a submodel of any width, also by layer."""
    kinds = named_tensors(model.blueprint.template)
    shapes = model.plan.cut_shapes(model.plan.leading_units(width))
    return sum(prod(shape) * kinds[name].element_size() for name, shape in shapes.items())


def measure_footprint(
    net: nn.Module, width: Width, inputs: tuple[Any, ...], batch: int = 1
) -> Footprint:
    """Measure one plain network without running it: on the meta device, which has shapes but no data."""
    parameters = sum(p.numel() for p in net.parameters())
    tensors = [*net.parameters(), *net.buffers()]
    size = sum(t.numel() * t.element_size() for t in tensors)
    gradients = sum(p.numel() * p.element_size() for p in net.parameters() if p.requires_grad)
    twin = without_weights(net).train()
    return Footprint(
        width,
        count_macs(twin, on_meta(inputs, 1)),
        parameters - sum(p.numel() for p in _norms_and_embeddings(net)),
        parameters,
        size,
        size + gradients + _saved_bytes(twin, inputs, batch),
    )


def _saved_bytes(net: nn.Module, inputs: tuple[Any, ...], batch: int) -> int:
    try:
        return saved_bytes(net, on_meta(inputs, batch))
    except (
        ValueError
    ):  # BatchNorm1d cannot train on one example; what is kept grows evenly with the batch
        if batch != 1:
            raise
        two, three = (saved_bytes(net, on_meta(inputs, n)) for n in (2, 3))
        return 2 * two - three


def on_meta(inputs: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
    """Return inputs without data and with the given batch size."""

    def shape_only(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty(
            (batch, *value.shape[1:]) if value.dim() else (), dtype=value.dtype, device="meta"
        )

    moved: tuple[Any, ...] = pytree.tree_map(shape_only, inputs)
    return moved


def _norms_and_embeddings(net: nn.Module) -> Iterable[nn.Parameter]:
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.Embedding)
    for module in net.modules():
        if isinstance(module, kinds):
            yield from module.parameters(recurse=False)


def count_macs(net: nn.Module, inputs: tuple[Any, ...]) -> int:
    """Return the multiply-accumulates of one forward pass of a network, on the device of its inputs."""
    steps: list[int] = []
    hooks = [
        m.register_forward_hook(_lstm_steps(steps)) for m in net.modules() if isinstance(m, nn.LSTM)
    ]
    mode = net.training
    net.eval()  # BatchNorm1d cannot train on one example
    devices = [t.device for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)]
    with devices[0] if devices else torch.device("cpu"), torch.no_grad(), _counter() as counter:
        net(*inputs)
    net.train(mode)
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops() // 2 + sum(steps)


def _counter() -> FlopCounterMode:
    def convolution(
        x: Any, weight: Any, bias: Any, *rest: Any, out_shape: Any = None, **_: Any
    ) -> int:
        transposed = rest[3]
        added = 2 * prod(out_shape) if bias is not None else 0
        return int(conv_flop_count(x, weight, out_shape, transposed=transposed)) + added

    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution: convolution})


def _lstm_steps(found: list[int]) -> Any:
    def hook(module: nn.LSTM, inputs: tuple[Tensor, ...], output: tuple[Tensor, Any]) -> None:
        positions = output[0].numel() // output[0].shape[-1]
        cells = module.hidden_size * module.num_layers * (2 if module.bidirectional else 1)
        found.append(LSTM_ELEMENTWISE * cells * positions)

    return hook


def saved_bytes(net: nn.Module, inputs: tuple[Any, ...]) -> int:
    """Return the bytes a forward pass keeps for the backward pass, each storage counted once."""
    own = {t.untyped_storage()._cdata for t in [*net.parameters(), *net.buffers()]}
    kept: dict[
        int, torch.UntypedStorage
    ] = {}  # holding the storages keeps their addresses from being reused

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.device("meta"), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        net(*inputs)
    return sum(storage.nbytes() for storage in kept.values())
