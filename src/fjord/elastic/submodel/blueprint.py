"""How submodels are built: from the user's modules, from the graph, or by the user's factory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.submodel.from_graph import cut_graph
from fjord.elastic.submodel.from_modules import Attribute, cut_module
from fjord.elastic.trace.graph import ModelTrace, copy_module, empty_like, named_tensors, tied_names

ModelFactory = Callable[[UnitSelection], nn.Module]
"""Builds the submodel that keeps these units of each family, with weights of any value."""


@dataclass(frozen=True)
class Blueprint:
    """A model without weights, and the way its submodels are built."""

    template: nn.Module
    route: str = "module"
    trace: ModelTrace | None = None
    factory: ModelFactory | None = None
    attributes: frozenset[Attribute] = frozenset()
    """Integers remembered by the user's classes that have to be corrected in a submodel."""
    note: str = ""
    """Why the graph is used in place of the user's modules."""

    def build(
        self, tensors: Mapping[str, Tensor], plan: WidthPlan, kept: UnitSelection
    ) -> nn.Module:
        """Return the submodel that holds these tensors."""
        if self.route == "factory":
            assert self.factory is not None
            return _filled(self.factory(kept), tensors, self.template)
        if self.route == "graph":
            assert self.trace is not None
            return cut_graph(self.template, self.trace, tensors, plan, kept)
        return cut_module(self.template, tensors, plan, kept, self.attributes)

    def on(self, model: nn.Module) -> "Blueprint":
        """Return the same way of building around another copy of the model."""
        return replace(self, template=model)


def without_weights(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose tensors take no memory."""
    return copy_module(model, {name: empty_like(t) for name, t in named_tensors(model).items()})


def as_parameters_like(tensors: Mapping[str, Tensor], template: nn.Module) -> dict[str, Tensor]:
    """Make each tensor a parameter or a buffer, as it is in the model."""
    parameters = {name: p.requires_grad for name, p in template.named_parameters()}
    return {
        key: nn.Parameter(t, parameters[n]) if (n := key.partition("@")[0]) in parameters else t
        for key, t in tensors.items()
    }


def _filled(net: nn.Module, tensors: Mapping[str, Tensor], template: nn.Module) -> nn.Module:
    """Put tensors into a module that a factory made, checking every name and shape."""
    current = {
        **dict(net.named_parameters(remove_duplicate=False)),
        **dict(net.named_buffers(remove_duplicate=False)),
    }
    names = tied_names(template)
    if current.keys() != names.keys():
        odd = ", ".join(sorted(current.keys() ^ names.keys()))
        raise UserError(
            f"factory: the submodel and the full model do not have the same tensors; only in one: {odd}"
        )
    for name, first in names.items():
        if current[name].shape != tensors[first].shape:
            raise UserError(
                f"factory: {name} has shape {tuple(current[name].shape)}, the plan needs {tuple(tensors[first].shape)}"
            )
        path, _, leaf = name.rpartition(".")
        owner = net.get_submodule(path)
        kind = owner._parameters if leaf in owner._parameters else owner._buffers
        kind[leaf] = tensors[first]  # type: ignore[assignment]
    for module in net.modules():
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
    return net
