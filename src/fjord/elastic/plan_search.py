"""Find a plan and a way to build submodels that pass the proof.

The slow steps (tracing for any batch size, tracing in training) are done only where needed.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverloadPacket

from fjord.core.width import Width, WidthSpace
from fjord.elastic.errors import ADVICE, FORWARD_ERRORS, ElasticityError
from fjord.elastic.families import TIED_REASON, build_plan
from fjord.elastic.plan import WidthPlan
from fjord.elastic.proof import PlanProof
from fjord.elastic.submodel.blueprint import Blueprint, ModelFactory
from fjord.elastic.submodel.from_modules import Attribute, attribute_meanings
from fjord.elastic.trace.example_inputs import resize_batch
from fjord.elastic.trace.model_trace import ModelTrace
from fjord.elastic.trace.probe import ForwardProbe, probe_forward
from fjord.elastic.trace.rules import RuleFunction
from fjord.elastic.trace.tracer import GraphTracer

LARGE_MODEL = 30_000_000
"""Models with more parameters are proved in single precision first: copying weights is slow."""


@dataclass(kw_only=True)
class PlanSearch:
    """The search for a proved plan of one model."""

    model: nn.Module
    inputs: tuple[Any, ...]
    space: WidthSpace
    freeze: tuple[str, ...]
    round_to: int
    rules: dict[OpOverloadPacket, RuleFunction]
    factory: ModelFactory | None
    probe: ForwardProbe = field(default_factory=ForwardProbe)

    def find_plan(self) -> tuple[Blueprint, WidthPlan]:
        """Trace the model, plan its families, and prove the plan in one of two precisions."""
        self.probe = probe_forward(self.model, self.inputs)
        tracer = self._make_tracer()
        trace = tracer.trace()
        plan = self._build_plan(trace)
        first, second = self._precisions()
        try:
            return self._prove(tracer, trace, plan, first)
        except ElasticityError as error:
            try:  # rounding, or a precision written in forward, may be the cause
                return self._prove(tracer, trace, plan, second)
            except ElasticityError:
                raise error from error.__cause__

    def _precisions(self) -> tuple[torch.dtype, torch.dtype]:
        num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        if num_parameters > LARGE_MODEL:
            return torch.float32, torch.float64
        return torch.float64, torch.float32

    def _make_tracer(self) -> GraphTracer:
        """Return a tracer for the graph that is most likely needed.

        Models with attention are mostly cut from their graph, which then must fit any batch size.
        """
        open_batch = self.probe.attends
        inputs = self._example_inputs(batch=2 if open_batch else 1)
        return GraphTracer(self.model, inputs, open_batch, self.rules)

    def _example_inputs(self, *, batch: int) -> tuple[Any, ...]:
        """Return the inputs with this many examples, if their first axis is a batch."""
        if not self.probe.batched:
            return self.inputs
        return resize_batch(self.inputs, batch)

    def _build_plan(self, trace: ModelTrace) -> WidthPlan:
        plan = build_plan(self.model, trace, self.space.widths, self.freeze, self.round_to)
        if not plan.families:
            raise ElasticityError(_describe_frozen(self.model, plan))
        return plan

    def _prove(
        self, tracer: GraphTracer, trace: ModelTrace, plan: WidthPlan, dtype: torch.dtype
    ) -> tuple[Blueprint, WidthPlan]:
        """Return the first way to build submodels that equals masking."""
        one_example = self._example_inputs(batch=1)
        proof = PlanProof(self.model, one_example, trace, plan, dtype)
        if self.probe.batched and not self._examples_independent(proof):
            # The first axis is no batch: start again with the inputs as they are.
            self.probe = replace(self.probe, batched=False)
            tracer = self._make_tracer()
            trace = tracer.trace()
            return self._prove(tracer, trace, self._build_plan(trace), dtype)
        proof.check_permutation()
        if self.factory is not None:
            blueprint = Blueprint(self.model, "factory", factory=self.factory)
            self._check_cut(proof, blueprint)
            return blueprint, proof.plan
        return self._find_blueprint(tracer, proof)

    def _examples_independent(self, proof: PlanProof) -> bool:
        try:
            return proof.examples_are_independent()
        except FORWARD_ERRORS as raised:
            raise proof.forward_failure(raised) from raised

    def _find_blueprint(self, tracer: GraphTracer, proof: PlanProof) -> tuple[Blueprint, WidthPlan]:
        """Try the user's modules, then with corrected attributes, and at last the graph."""
        blueprint = Blueprint(self.model)
        failure = self._cut_failure(proof, blueprint)
        if failure:
            blueprint, failure = self._correct_attributes(proof, failure)
        if failure:
            proof = self._runnable_proof(tracer, proof)
            blueprint = Blueprint(self.model, "graph", proof.trace, note=failure)
            self._check_cut(proof, blueprint)
            proof.trace.forget_weights()
        return blueprint, proof.plan

    def _correct_attributes(self, proof: PlanProof, failure: str) -> tuple[Blueprint, str]:
        """Correct integer attributes of the user's classes, if submodels then pass the proof.

        Only those without which the submodel fails are corrected.
        """
        candidates: set[Attribute] = set()
        for attribute, meanings in attribute_meanings(self.model, proof.plan).items():
            if meanings:
                candidates.add(attribute)
        blueprint = Blueprint(self.model, attributes=frozenset(candidates))
        if not candidates:
            return blueprint, failure
        failure = self._cut_failure(proof, blueprint)
        if failure:
            return blueprint, failure
        for attribute in sorted(candidates, key=str):
            fewer = replace(blueprint, attributes=blueprint.attributes - {attribute})
            if not self._cut_failure(proof, fewer):
                blueprint = fewer
        return blueprint, ""

    def _check_cut(self, proof: PlanProof, blueprint: Blueprint) -> None:
        """Raise an error if the submodels of this blueprint fail."""
        failure = self._cut_failure(proof, blueprint)
        if failure:
            raise ElasticityError(
                f"{proof.name} cannot be cut. {blueprint.note} {failure} {ADVICE}"
            )

    def _cut_failure(self, proof: PlanProof, blueprint: Blueprint) -> str:
        """Say why submodels fail, at the smallest width or about the middle; "" if they do not."""
        widths = self.space.widths
        smallest = widths[0]
        middle = widths[len(widths) // 2]
        for width in dict.fromkeys((smallest, middle)):
            built = f"Built by {blueprint.route} at width {width}:"
            try:
                error = proof.cut_error(blueprint, width)
                if not error <= proof.tolerance:  # NaN is a failure too
                    return f"{built} the output differs from the masked model by {error:.1e}."
                if width == smallest:
                    self._check_training(proof, blueprint, width)
            except FORWARD_ERRORS as raised:
                return f"{built} {_describe_error(raised)}."
        return ""

    def _check_training(self, proof: PlanProof, blueprint: Blueprint, width: Width) -> None:
        """Run a submodel in both modes, unless its modules do the same in both."""
        if self.probe.modes_alike and blueprint.route == "module":
            return
        proof.check_runs(blueprint, width, resize_batch(self.inputs, 3))

    def _runnable_proof(self, tracer: GraphTracer, proof: PlanProof) -> PlanProof:
        """Return a proof whose graphs can be run themselves: on any batch size, in both modes."""
        if tracer.open_batch and self.probe.modes_alike:
            return proof
        trace = proof.trace
        if not tracer.open_batch:
            inputs = self._example_inputs(batch=2)
            tracer = replace(tracer, inputs=inputs, open_batch=True)
            trace = tracer.trace()
        if not self.probe.modes_alike:
            tracer.add_mode(trace, training=True)
        return proof.with_trace(trace, self._build_plan(trace))


def _describe_frozen(model: nn.Module, plan: WidthPlan) -> str:
    """Say why no axis of a model can be cut."""
    lines: dict[str, None] = {}
    for frozen in plan.frozen:
        if frozen.reason not in ("kernel positions", TIED_REASON):
            name, dim = frozen.axis
            lines[f"{name}[{dim}]: {frozen.reason}"] = None
    return (
        f"{type(model).__name__} has no width that can be cut. "
        f"Every axis is frozen: {'; '.join(lines)}. {ADVICE}"
    )


def _describe_error(error: BaseException) -> str:
    """Return the kind of an error, the user's line that raised it, and its first line."""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "/torch/" not in code.co_filename and "/fjord/" not in code.co_filename:
            place = f" in {code.co_qualname} (line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    first_line, _, _ = str(error).strip().partition("\n")
    return f"{type(error).__name__}{place}: {first_line}"
