"""Which axes of a layer's tensors are its outputs."""

from torch import nn

from fjord.elastic.module_tensors import named_tensors
from fjord.elastic.plan import Axis


def is_output_axis(model: nn.Module, axis: Axis) -> bool:
    """Return whether the layer's output runs along this axis, not its input.

    A parameter outside the layers of `torch.nn` may be either, and counts as an output.

    >>> model = nn.Sequential(nn.Linear(3, 5))
    >>> is_output_axis(model, ("0.weight", 0)), is_output_axis(model, ("0.weight", 1))
    (True, False)
    """
    name, dim = axis
    if not in_torch_layer(model, name):
        return True
    path, _, leaf = name.rpartition(".")
    layer = model.get_submodule(path)
    is_vector = named_tensors(layer)[leaf].dim() == 1
    if _has_outputs_second(layer) and not is_vector:
        return dim == 1
    return dim == 0


def _has_outputs_second(layer: nn.Module) -> bool:
    """Return whether the weight of a layer is (in, out), not (out, in)."""
    if isinstance(layer, nn.modules.conv._ConvNd):
        return layer.transposed
    return isinstance(layer, nn.Embedding)


def in_torch_layer(model: nn.Module, name: str) -> bool:
    """Return whether a tensor belongs to a layer of `torch.nn`, whose outputs are known."""
    layer = model.get_submodule(name.rpartition(".")[0])
    return type(layer).__module__.startswith("torch.nn.")


def layer_name(model: nn.Module, name: str) -> str:
    """Return the name of a tensor's layer, or the tensor's own outside the layers of `torch.nn`."""
    if in_torch_layer(model, name):
        return name.rpartition(".")[0]
    return name
