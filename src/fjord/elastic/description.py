"""An elastic model without its weights, as text: a program that has it need not trace the model."""

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
from fjord.elastic.submodel.from_modules import Attribute, attribute_meanings
from fjord.elastic.trace.rules import RuleFunction
from fjord.elastic.trace.tracer import trace_any_batch

FORMAT = 1


@dataclass(frozen=True)
class ModelInfo:
    """The description of a saved model: everything but the weights."""

    model: str
    """The class of the model."""
    plan: WidthPlan
    space: WidthSpace
    norms: BatchNormMode
    per_width: frozenset[str]
    """The tensors that are stored once per width."""
    route: str
    attributes: frozenset[str]
    width: str | None
    """The width of a file that holds a single submodel, as text; None for a whole model."""
    text: str
    """The text this was parsed from."""
    calibrated: Mapping[LayerWidths, str]
    """The submodels whose BatchNorm statistics were measured after training, each with the label
    that the keys of its statistics have after the name."""
    statistics: frozenset[str]
    """The names of those statistics."""

    @classmethod
    def parse(
        cls,
        source: object,
        text: str,
        width: str | None = None,
    ) -> Self:
        """Read a description; errors name its source."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise UserError(
                    f"{source}: written in format {data['format']}, "
                    f"this version reads format {FORMAT}"
                )
            return cls._from_json(data, text, width)
        except (json.JSONDecodeError, KeyError, TypeError, IndexError) as error:
            raise UserError(
                f"{source}: its width plan cannot be read ({type(error).__name__}: {error})"
            ) from error

    @classmethod
    def _from_json(
        cls,
        data: Mapping[str, Any],
        text: str,
        width: str | None,
    ) -> Self:
        probabilities = {value: Fraction(p) for value, p in data["widths"].items()}
        plan = WidthPlan.from_json(data["plan"])
        calibrated = {}
        for label, widths in data.get("calibrated", {}).items():
            layer_widths = as_layer_widths(plan.family_widths(widths))
            calibrated[layer_widths] = label
        return cls(
            model=data["model"],
            plan=plan,
            space=WidthSpace.of(probabilities),
            norms=data["norms"],
            per_width=frozenset(data["per_width"]),
            route=data["route"],
            attributes=frozenset(data["attributes"]),
            width=width,
            text=text,
            calibrated=calibrated,
            statistics=frozenset(data.get("statistics", ())),
        )


@dataclass(frozen=True)
class RebuildOptions:
    """What is needed to build submodels again and cannot be stored in a description."""

    example_inputs: Any = None
    rules: dict[OpOverloadPacket, RuleFunction] = field(default_factory=dict)
    factory: ModelFactory | None = None


def describe_model(model: ElasticModel) -> str:
    """Return everything about a model but its weights, as JSON."""
    template = model.blueprint.template
    probabilities = {}
    space = model.space
    for width, probability in zip(space.widths, space.probabilities, strict=True):
        probabilities[str(width)] = str(probability)
    info: dict[str, Any] = {
        "format": FORMAT,
        "model": type(template).__name__,
        "plan": model.plan.to_json(),
        "widths": probabilities,
        "norms": model.norms,
        "per_width": sorted(batchnorm_tensors(template, model.norms)),
        "route": model.blueprint.route,
        "attributes": sorted(map(_attribute_name, model.blueprint.attributes)),
    }
    if model.calibrated:
        info["statistics"] = sorted(batchnorm_tensors(template, "statistics"))
        info["calibrated"] = _describe_calibrated(model.calibrated)
    return json.dumps(info)


def _describe_calibrated(calibrated: Iterable[LayerWidths]) -> dict[str, dict[str, str]]:
    """Return the widths of calibrated submodels by their labels."""
    described = {}
    for layer_widths, label in calibration_labels(calibrated).items():
        described[label] = {name: str(width) for name, width in layer_widths}
    return described


def calibration_labels(calibrated: Iterable[LayerWidths]) -> dict[LayerWidths, str]:
    """Return a label for each submodel: its width, or a number if the widths of layers differ."""
    labels = {}
    for number, layer_widths in enumerate(calibrated):
        widths = {width for _, width in layer_widths}
        if len(widths) == 1:
            labels[layer_widths] = str(widths.pop())
        else:
            labels[layer_widths] = f"mix-{number}"
    return labels


def restore_model(
    source: object,
    text: str,
    model: nn.Module,
) -> ElasticModel:
    """Make a model elastic as described, without finding its plan again.

    Only for models whose submodels are built from the user's modules: a graph would have to be
    traced all the same. Errors name the source of the description.
    """
    info = ModelInfo.parse(source, text)
    blueprint = restore_blueprint(source, info, model, RebuildOptions())
    full = named_tensors(model)
    return ElasticModel.from_full(blueprint, info.plan, info.space, info.norms, full)


def restore_blueprint(
    source: object,
    info: ModelInfo,
    model: nn.Module,
    options: RebuildOptions,
) -> Blueprint:
    """Return how submodels of the given model are built, according to a description."""
    _check_shapes(source, info, model)
    template = without_weights(model)
    if info.route == "factory":
        if options.factory is None:
            raise UserError(
                f"{source}: submodels of {info.model} are built by a factory: "
                "give it to load_model()"
            )
        return Blueprint(template, "factory", factory=options.factory)
    if info.route == "graph":
        if options.example_inputs is None:
            raise UserError(
                f"{source}: submodels of {info.model} are built from its graph: "
                "give load_model() the example_inputs"
            )
        trace = trace_any_batch(model, options.example_inputs, options.rules)
        return Blueprint(template, "graph", trace)
    attributes = set()
    for attribute in attribute_meanings(model, info.plan):
        if _attribute_name(attribute) in info.attributes:
            attributes.add(attribute)
    return Blueprint(template, attributes=frozenset(attributes))


def _check_shapes(
    source: object,
    info: ModelInfo,
    model: nn.Module,
) -> None:
    """Raise an error unless a model has the tensors that a description says."""
    shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}
    if shapes == dict(info.plan.shapes):
        return
    different = set(shapes.items()) ^ set(info.plan.shapes.items())
    raise UserError(
        f"{source}: holds a {info.model} whose tensors differ from the given "
        f"{type(model).__name__}: {sorted(different)[:4]}"
    )


def _attribute_name(attribute: Attribute) -> str:
    """Return how an attribute of a class is named in a description."""
    kind, key = attribute
    return f"{kind.__qualname__}.{key}"
