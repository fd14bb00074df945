"""An elastic model but for its weights, as text: who has it need not trace the model again."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Self

from torch import nn
from torch._ops import OpOverloadPacket

from fjord.core.errors import UserError
from fjord.core.width import WidthSpace
from fjord.elastic.batchnorm import BatchNormMode, batchnorm_tensors
from fjord.elastic.model import ElasticModel, LayerWidths, as_layer_widths
from fjord.elastic.module_tensors import named_tensors, without_weights
from fjord.elastic.plan import WidthPlan
from fjord.elastic.submodel.blueprint import Blueprint, ModelFactory
from fjord.elastic.submodel.from_modules import attribute_meanings
from fjord.elastic.trace.rules import RuleFunction
from fjord.elastic.trace.tracer import trace_any_batch

FORMAT = 1


@dataclass(frozen=True)
class ModelInfo:
    """What a file says of its model beside the weights."""

    model: str
    plan: WidthPlan
    space: WidthSpace
    norms: BatchNormMode
    per_width: frozenset[str]
    route: str
    attributes: frozenset[str]
    width: str | None
    """The width of a file that holds one submodel, as text; None where it holds all."""
    text: str
    calibrated: Mapping[LayerWidths, str]
    """The mark, after the @ of a tensor's key, of each submodel whose BatchNorm statistics were measured afterwards."""
    statistics: frozenset[str]
    """Those statistics, by name."""

    @classmethod
    def read(cls, where: object, text: str, width: str | None = None) -> Self:
        """Read a description; errors name where it came from."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise UserError(
                    f"{where}: written in format {data['format']}, this version reads format {FORMAT}"
                )
            space = WidthSpace.of({w: Fraction(p) for w, p in data["widths"].items()})
            plan = WidthPlan.from_json(data["plan"])
            names = frozenset(data["per_width"]), data["route"], frozenset(data["attributes"])
            mixes = {
                as_layer_widths(plan.family_widths(widths)): mark
                for mark, widths in data.get("calibrated", {}).items()
            }
            measured = mixes, frozenset(data.get("statistics", ()))
            return cls(data["model"], plan, space, data["norms"], *names, width, text, *measured)
        except (json.JSONDecodeError, KeyError, TypeError, IndexError) as error:
            raise UserError(
                f"{where}: its width plan cannot be read ({type(error).__name__}: {error})"
            ) from error


@dataclass(frozen=True)
class RestoredModel:
    """What a description does not hold of the way submodels are built."""

    example_inputs: Any = None
    rules: dict[OpOverloadPacket, RuleFunction] = field(default_factory=dict)
    factory: ModelFactory | None = None


def describe_model(model: ElasticModel) -> str:
    """Return all that is known of a model but its weights."""
    template, marks = model.blueprint.template, calibration_marks(model.calibrated)
    info: dict[str, Any] = {
        "format": FORMAT,
        "model": type(template).__name__,
        "plan": model.plan.to_json(),
        "widths": {
            str(w): str(p)
            for w, p in zip(model.space.widths, model.space.probabilities, strict=True)
        },
        "norms": model.norms,
        "per_width": sorted(batchnorm_tensors(template, model.norms)),
        "route": model.blueprint.route,
        "attributes": sorted(
            f"{kind.__qualname__}.{key}" for kind, key in model.blueprint.attributes
        ),
    }
    if marks:
        info["statistics"] = sorted(batchnorm_tensors(template, "statistics"))
        info["calibrated"] = {
            mark: {name: str(width) for name, width in mix} for mix, mark in marks.items()
        }
    return json.dumps(info)


def calibration_marks(mixes: Iterable[LayerWidths]) -> dict[LayerWidths, str]:
    """Return a mark for each submodel: its width, or a number where layers have widths of their own."""
    marks = {}
    for number, mix in enumerate(mixes):
        widths = {width for _, width in mix}
        marks[mix] = str(widths.pop()) if len(widths) == 1 else f"mix-{number}"
    return marks


def restore_model(where: object, text: str, model: nn.Module) -> ElasticModel:
    """Make a model elastic as `elasticize` did before this description was written, without finding its plan again.

    Only where submodels are built from the user's modules: a graph would have to be traced all the same.
    """
    info = ModelInfo.read(where, text)
    blueprint = blueprint_of(where, info, model, RestoredModel())
    return ElasticModel.from_full(
        blueprint, info.plan, info.space, info.norms, named_tensors(model)
    )


def blueprint_of(
    where: object, info: ModelInfo, model: nn.Module, remade: RestoredModel
) -> Blueprint:
    """Return how submodels of the given model are built."""
    shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
    if shapes != dict(info.plan.shapes):
        wrong = sorted(set(shapes.items()) ^ set(info.plan.shapes.items()))[:4]
        kind = type(model).__name__
        raise UserError(
            f"{where}: holds a {info.model} whose tensors differ from the given {kind}: {wrong}"
        )
    template = without_weights(model)
    if info.route == "factory":
        if remade.factory is None:
            raise UserError(
                f"{where}: submodels of {info.model} are built by a factory: give it to load()"
            )
        return Blueprint(template, "factory", factory=remade.factory)
    if info.route == "graph":
        if remade.example_inputs is None:
            raise UserError(
                f"{where}: submodels of {info.model} are built from its graph: give load() the example_inputs"
            )
        return Blueprint(
            template, "graph", trace_any_batch(model, remade.example_inputs, remade.rules)
        )
    found = attribute_meanings(model, info.plan)
    return Blueprint(
        template,
        attributes=frozenset(k for k in found if f"{k[0].__qualname__}.{k[1]}" in info.attributes),
    )
