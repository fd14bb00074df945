"""A device's part of an elastic model: the units it holds, and the submodels of every width it can carry on them."""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from fjord.elastic.blueprint import as_kinds
from fjord.elastic.model import ElasticModel
from fjord.elastic.norms import norm_tensors, within
from fjord.elastic.plan import Indices, Kept, WidthPlan, take
from fjord.width import Width, WidthSpace


def below(plan: WidthPlan, held: Kept, width: Width) -> Kept:
    """Return the held units among the first ceil(width * K) of each family."""
    return {f.name: held[f.name][held[f.name] < f.count(width)] for f in plan.families}


def places(model: ElasticModel, held: Kept, widths: Iterable[Width]) -> dict[str, Indices]:
    """Return where each tensor of a device that holds these units lies in the model, by key.

    What is kept per width (`bn1.weight@2/5`) is held for the device's own widths only.
    """
    per_width = norm_tensors(model.blueprint.template, model.norms)
    found = {name: i for name, i in model.plan.kept_indices(held).items() if name not in per_width}
    for width in widths if per_width else ():
        wanted = model.plan.kept_indices(below(model.plan, held, width))
        stored = model.plan.kept_indices(model.plan.ordered(width))
        for name in sorted(per_width):
            found[f"{name}@{width}"] = [within(w, s) for w, s in zip(wanted[name], stored[name], strict=True)]
    return found


class Places:
    """Where the tensors of devices lie in a model; what was asked for before is remembered, if it is leading units."""

    def __init__(self, model: ElasticModel) -> None:
        self.model = model
        self._leading = lru_cache(maxsize=64)(self._of_leading)

    def __call__(self, held: Kept, widths: tuple[Width, ...]) -> dict[str, Indices]:
        """Return where each tensor of a device that holds these units lies."""
        counts = tuple(len(u) if int(u[-1]) == len(u) - 1 else -1 for u in held.values())
        return places(self.model, held, widths) if -1 in counts else self._leading(counts, widths)

    def _of_leading(self, counts: tuple[int, ...], widths: tuple[Width, ...]) -> dict[str, Indices]:
        names = [family.name for family in self.model.plan.families]
        held = {name: torch.arange(count) for name, count in zip(names, counts, strict=True)}
        return places(self.model, held, widths)


def taken(model: ElasticModel, where: dict[str, Indices]) -> dict[str, Tensor]:
    """Return the tensors at these places, as long as the model does not change: views of it where units are leading."""
    return {key: take(model.tensors[key].detach(), indices) for key, indices in where.items()}


class Slice(ElasticModel):
    """The submodels of one device, on the weights it holds: at each width, the held units among the first ceil(p K)."""

    def __init__(self, model: ElasticModel, held: Kept, space: WidthSpace, tensors: dict[str, Tensor]) -> None:
        template = model.blueprint.template
        super().__init__(model.blueprint, model.plan, space, model.norms, as_kinds(tensors, template))
        self.held = held
        self.per_width = norm_tensors(template, model.norms)

    def _ordered(self, widths: dict[str, Width]) -> Kept:
        return below(self.plan, self.held, widths[""])

    def _sources(
        self, widths: dict[str, Width], kept: Kept, *, calibrated: bool = False
    ) -> dict[str, tuple[str, Indices]]:
        inner, outer = self.plan.kept_indices(kept), self.plan.kept_indices(self.held)
        return {
            name: (f"{name}@{widths['']}", [None] * len(i))
            if name in self.per_width
            else (name, [within(wanted, there) for wanted, there in zip(i, outer[name], strict=True)])
            for name, i in inner.items()
        }
