"""How submodels are built: from the user's modules, from the graph, or by the user's factory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.elastic.module_tensors import tied_names
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.submodel.from_graph import cut_graph
from fjord.elastic.submodel.from_modules import Attribute, cut_module
from fjord.elastic.tensor_key import TensorKey
from fjord.elastic.trace.model_trace import ModelTrace

ModelFactory = Callable[[UnitSelection], nn.Module]
"""Builds the submodel that keeps these units of each family, with weights of any value."""


@dataclass(frozen=True)
class Blueprint:
    """A model without weights, and the way its submodels are built."""

    template: nn.Module
    route: str = "module"
    """How submodels are built: "module", "graph" or "factory"."""
    trace: ModelTrace | None = None
    factory: ModelFactory | None = None
    attributes: frozenset[Attribute] = frozenset()
    """Integer attributes of the user's classes that have to be corrected in a submodel."""
    note: str = ""
    """Why the graph is used instead of the user's modules."""

    def build(
        self,
        tensors: Mapping[str, Tensor],
        plan: WidthPlan,
        units: UnitSelection,
    ) -> nn.Module:
        """Return the submodel of these units, with these tensors."""
        if self.route == "factory":
            assert self.factory is not None
            net = self.factory(units)
            _fill_module(net, tensors, self.template)
            return net
        if self.route == "graph":
            assert self.trace is not None
            return cut_graph(self.template, self.trace, tensors, plan, units)
        return cut_module(self.template, tensors, plan, units, self.attributes)

    def on(self, model: nn.Module) -> "Blueprint":
        """Return the same way of building around another copy of the model."""
        return replace(self, template=model)


def as_parameters_like(tensors: Mapping[str, Tensor], template: nn.Module) -> dict[str, Tensor]:
    """Make each tensor a parameter or a buffer, as it is in the model."""
    requires_grad = {}
    for name, parameter in template.named_parameters():
        requires_grad[name] = parameter.requires_grad
    result: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name = TensorKey.parse(key).name
        if name in requires_grad:
            result[key] = nn.Parameter(tensor, requires_grad[name])
        else:
            result[key] = tensor
    return result


def _fill_module(
    net: nn.Module,
    tensors: Mapping[str, Tensor],
    template: nn.Module,
) -> None:
    """Put tensors into a module that a factory made, after checking every name and shape."""
    for name, tensor in _checked_tensors(net, tensors, template).items():
        path, _, leaf = name.rpartition(".")
        owner = net.get_submodule(path)
        if leaf in owner._parameters:
            owner._parameters[leaf] = tensor  # type: ignore[assignment]
        else:
            owner._buffers[leaf] = tensor
    for module in net.modules():
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def _checked_tensors(
    net: nn.Module,
    tensors: Mapping[str, Tensor],
    template: nn.Module,
) -> dict[str, Tensor]:
    """Return the tensor for every name in a module; tied names get the same tensor."""
    current: dict[str, Tensor] = dict(net.named_parameters(remove_duplicate=False))
    current.update(net.named_buffers(remove_duplicate=False))
    first_names = tied_names(template)
    different = sorted(current.keys() ^ first_names.keys())
    if different:
        names = ", ".join(different)
        raise UserError(
            "factory: the submodel and the full model do not have the same tensors; "
            f"only in one: {names}"
        )
    result = {}
    for name, first in first_names.items():
        shape = tuple(current[name].shape)
        needed = tuple(tensors[first].shape)
        if shape != needed:
            raise UserError(f"factory: {name} has shape {shape}, the plan needs {needed}")
        result[name] = tensors[first]
    return result
