"""Turn an ordinary module into an elastic model, and let the plan prove itself first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverloadPacket

from fjord.core.errors import UserError
from fjord.core.width import WidthLike, WidthSpace, as_space, uniform_widths
from fjord.elastic.batchnorm import BatchNormMode
from fjord.elastic.errors import ADVICE, FORWARD_ERRORS, ElasticityError
from fjord.elastic.families import TIED, build_plan
from fjord.elastic.model import ElasticModel
from fjord.elastic.module_tensors import named_tensors, without_weights
from fjord.elastic.plan import WidthPlan
from fjord.elastic.proof import PlanProof
from fjord.elastic.submodel.blueprint import Blueprint, ModelFactory
from fjord.elastic.submodel.from_modules import attribute_meanings
from fjord.elastic.trace.example_inputs import as_input_tuple, resize_batch
from fjord.elastic.trace.model_trace import ModelTrace
from fjord.elastic.trace.probe import ForwardProbe, probe_forward
from fjord.elastic.trace.rules import RuleFunction
from fjord.elastic.trace.tracer import GraphTracer

LARGE = 30_000_000
"""Models with more parameters are proved in single precision first: moving the weights is what takes time."""


def elasticize(
    model: nn.Module,
    example_inputs: Any,
    *,
    widths: WidthSpace | Iterable[WidthLike] | None = None,
    freeze: str | Iterable[str] = (),
    round_to: int = 1,
    norms: BatchNormMode = "layers",
    rules: Mapping[OpOverloadPacket, RuleFunction] | None = None,
    factory: ModelFactory | None = None,
) -> ElasticModel:
    """Find the unit families of a model from its own graph and return it as an elastic model.

    `widths` is P with D_P, or a list of equally likely widths (default uniform-5); `freeze` keeps the units
    of layers whole, by name or pattern; `round_to` rounds channel counts up to a multiple; `rules` adds or
    replaces operator rules; `factory` builds submodels itself from the kept units of each family. The model
    is copied.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model must be a torch module, not {type(model).__name__}")
    if type(round_to) is not int or round_to < 1:
        raise UserError(f"round_to={round_to!r} must be a whole number of at least 1")
    if norms not in ("layers", "statistics", "shared"):
        raise UserError(f"norms={norms!r} must be 'layers', 'statistics' or 'shared'")
    patterns = (freeze,) if isinstance(freeze, str) else tuple(freeze)
    space = uniform_widths(5) if widths is None else as_space(widths)
    maker = _Maker(
        model, as_input_tuple(example_inputs), space, patterns, round_to, dict(rules or {}), factory
    )
    blueprint, plan = maker.make()
    return ElasticModel.from_full(
        blueprint.on(without_weights(model)), plan, maker.space, norms, named_tensors(model)
    )


@dataclass
class _Maker:
    """Goes from a model to a proved plan and way of cutting, doing the slow steps only where they are needed."""

    model: nn.Module
    inputs: tuple[Any, ...]
    space: WidthSpace
    freeze: tuple[str, ...]
    round_to: int
    rules: dict[OpOverloadPacket, RuleFunction]
    factory: ModelFactory | None
    seen: ForwardProbe = field(default_factory=ForwardProbe)

    def make(self) -> tuple[Blueprint, WidthPlan]:
        """Trace, plan and prove."""
        self.seen = probe_forward(self.model, self.inputs)
        tracer, trace, plan = self._traced()
        large = sum(p.numel() for p in self.model.parameters()) > LARGE
        first, second = (torch.float32, torch.float64) if large else (torch.float64, torch.float32)
        try:
            return self._prove(tracer, trace, plan, first)
        except ElasticityError as error:
            try:  # rounding, or a precision written in forward, may be to blame
                return self._prove(tracer, trace, plan, second)
            except ElasticityError:
                raise error from error.__cause__

    def _traced(self) -> tuple[GraphTracer, ModelTrace, WidthPlan]:
        tracer = GraphTracer(
            self.model, self._examples(single=not self.seen.attends), self.seen.attends, self.rules
        )
        trace = tracer.trace()
        return tracer, trace, self._plan(trace)

    def _examples(self, *, single: bool) -> tuple[Any, ...]:
        if not self.seen.batched:
            return self.inputs
        return resize_batch(self.inputs, 1 if single else 2)

    def _plan(self, trace: ModelTrace) -> WidthPlan:
        plan = build_plan(self.model, trace, self.space.widths, self.freeze, self.round_to)
        if not plan.families:
            raise ElasticityError(_nothing_elastic(self.model, plan))
        return plan

    def _prove(
        self, tracer: GraphTracer, trace: ModelTrace, plan: WidthPlan, dtype: torch.dtype
    ) -> tuple[Blueprint, WidthPlan]:
        """Return the first way to cut that equals masking: the factory, or the modules, or else the graph."""
        proof = PlanProof(self.model, self._examples(single=True), trace, plan, dtype)
        if self.seen.batched and not self._batch_confirmed(proof):
            self.seen = replace(self.seen, batched=False)
            return self._prove(*self._traced(), dtype)
        proof.demand_permutation()
        blueprint = (
            Blueprint(self.model, "factory", factory=self.factory)
            if self.factory
            else Blueprint(self.model)
        )
        failure = self._failure(proof, blueprint)
        if failure and not self.factory:
            blueprint, failure = self._with_attributes(proof, failure)
        if failure and not self.factory:
            proof = self._graph_proof(tracer, proof)
            blueprint = Blueprint(self.model, "graph", proof.trace, note=failure)
            failure = self._failure(proof, blueprint)
        if failure:
            raise ElasticityError(
                f"{proof.name} cannot be cut. {blueprint.note} {failure} {ADVICE}"
            )
        if blueprint.trace is not None:
            blueprint.trace.forget_weights()
        return blueprint, proof.plan

    def _batch_confirmed(self, proof: PlanProof) -> bool:
        try:
            return proof.examples_are_independent()
        except FORWARD_ERRORS as raised:
            raise ElasticityError(
                f"{proof.name} does not run in {proof.dtype}: {raised}. {ADVICE}"
            ) from raised

    def _with_attributes(self, proof: PlanProof, failure: str) -> tuple[Blueprint, str]:
        """Correct integers the user's classes remember, but only those without which the submodel fails."""
        found = {
            key for key, meanings in attribute_meanings(self.model, proof.plan).items() if meanings
        }
        blueprint = Blueprint(self.model, attributes=frozenset(found))
        if not found or (failure := self._failure(proof, blueprint)):
            return blueprint, failure
        for key in sorted(found, key=str):
            fewer = replace(blueprint, attributes=blueprint.attributes - {key})
            if not self._failure(proof, fewer):
                blueprint = fewer
        return blueprint, ""

    def _failure(self, proof: PlanProof, blueprint: Blueprint) -> str:
        """Say why submodels fail, at the smallest width and about the middle; or nothing."""
        widths = dict.fromkeys(
            (self.space.widths[0], self.space.widths[len(self.space.widths) // 2])
        )
        for width in widths:
            how = f"Built by {blueprint.route} at width {width}:"
            try:
                error = proof.cut_error(blueprint, width)
                if not error <= proof.tolerance:
                    return f"{how} the output differs from the masked model by {error:.1e}."
                if width == self.space.widths[0] and not (
                    self.seen.modes_alike and blueprint.route == "module"
                ):
                    proof.run_for_real(blueprint, width, resize_batch(self.inputs, 3))
            except FORWARD_ERRORS as raised:
                return f"{how} {_first_line(raised)}."
        return ""

    def _graph_proof(self, tracer: GraphTracer, proof: PlanProof) -> PlanProof:
        """Return a proof whose graphs can be run themselves: for any batch, and in training where that differs."""
        trace = proof.trace
        if tracer.open_batch and self.seen.modes_alike:
            return proof
        if not tracer.open_batch:
            tracer = replace(tracer, inputs=self._examples(single=False), open_batch=True)
            trace = tracer.trace()
        if not self.seen.modes_alike:
            tracer.add_mode(trace, training=True)
        return proof.again(trace, self._plan(trace))


def _nothing_elastic(model: nn.Module, plan: WidthPlan) -> str:
    axes = (f for f in plan.frozen if f.reason not in ("kernel positions", TIED))
    reasons = "; ".join(dict.fromkeys(f"{f.axis[0]}[{f.axis[1]}]: {f.reason}" for f in axes))
    return f"{type(model).__name__} has no width that can be cut. Every axis is frozen: {reasons}. {ADVICE}"


def _first_line(error: BaseException) -> str:
    """Name the error and the user's line that raised it."""
    trail, line = error.__traceback__, ""
    while trail is not None:
        code = trail.tb_frame.f_code
        if "/torch/" not in code.co_filename and "/fjord/" not in code.co_filename:
            line = f" in {code.co_qualname} (line {trail.tb_lineno})"
        trail = trail.tb_next
    return f"{type(error).__name__}{line}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
