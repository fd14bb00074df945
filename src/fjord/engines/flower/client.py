"""The device side: a ClientApp that trains the slice it is sent on its own data."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp as ClientApp

from fjord.core.errors import UserError
from fjord.core.width import WidthSpace, parse_width
from fjord.devices.budget import BUDGET_LIMITS, Budget
from fjord.devices.host import HostLimits, read_host
from fjord.devices.profile import DeviceProfile
from fjord.elastic.client_model import SliceIndex
from fjord.elastic.description import describe_model
from fjord.engines.flower.codec import decode_task, encode_update, unpack_content
from fjord.engines.flower.run_spec import RunSpec
from fjord.engines.flower.throttle import LoadThrottle
from fjord.training.assignment import Assignment, ClientUpdate, Reduction
from fjord.training.local import ClientTrainer


@dataclass(frozen=True)
class ClientRuntime:
    """All a process needs to train clients of one experiment."""

    trainer: ClientTrainer
    slice_index: SliceIndex
    space: WidthSpace
    """All widths of the experiment (P)."""
    profile: Callable[[int | None], DeviceProfile]
    """Measures what training costs on this machine, with so many examples."""


MakeRuntime = Callable[[RunSpec], ClientRuntime]
"""Builds an experiment; it should remember the last one for the next message."""


def client_app(make_runtime: MakeRuntime) -> ClientApp:
    """Return the app of a device."""
    app = ClientApp()

    @app.train()
    def train_client(message: Message, context: Context) -> Message:
        """Train one client."""
        torch.set_num_threads(1)  # sums depend on it
        head, blocks = unpack_content(message.content)
        runtime = _prepare_runtime(make_runtime, RunSpec.from_record(head), context)
        task = decode_task(
            head,
            blocks,
            runtime.trainer.model,
            runtime.slice_index,
        )
        own_client = context.node_config.get("client-id")
        if own_client is not None and own_client != task.client_id:
            asked = f"was asked to train client {task.client_id}"
            raise UserError(f"this node is client {own_client}, and {asked}")
        update = runtime.trainer(task, _reduce_for_load(runtime, task, context.node_config))
        trained = _trained_task(runtime, task, update)
        return Message(encode_update(trained, update), reply_to=message)

    @app.query()
    def describe_node(message: Message, context: Context) -> Message:
        """Reply which client this node is, if it is only one, and what it can carry."""
        config = context.node_config
        HostLimits.from_config(config)  # names what is wrong with them before the first training
        answer = ConfigRecord()
        for key in ("client-id", "ceiling"):
            if key in config:
                answer[key] = config[key]
        limits = {key: config[key] for key in BUDGET_LIMITS if key in config}
        if limits:
            spec = RunSpec.from_record(message.content.config_records["order"])
            try:
                answer.update(
                    _measure_budget(
                        make_runtime,
                        spec,
                        limits,
                        context,
                    )
                )
            except ValueError as error:
                # Part of the answer: Flower would wrap an error, and not say which client this is.
                answer["fault"] = str(error)
        return Message(RecordDict({"node": answer}), reply_to=message)

    return app


def _prepare_runtime(
    make_runtime: MakeRuntime,
    spec: RunSpec,
    context: Context,
) -> ClientRuntime:
    """Build the experiment; the node keeps its plan, as each message may have its own process."""
    asked = json.dumps(spec.fields())
    stored = context.state.config_records.get("fjord-plan")
    if stored is not None and stored["asked"] == asked:
        return make_runtime(replace(spec, known_model=str(stored["model"])))
    runtime = make_runtime(spec)
    model = runtime.trainer.model
    if model.blueprint.route == "module":  # a graph would have to be traced again all the same
        record = ConfigRecord({"asked": asked, "model": describe_model(model)})
        context.state.config_records["fjord-plan"] = record
    return runtime


def _trained_task(
    runtime: ClientRuntime,
    task: Assignment,
    update: ClientUpdate,
) -> Assignment:
    if update.reduction is None:
        return task
    smaller = runtime.trainer.fallbacks.at_ceiling(task, update.reduction.ceiling)
    assert smaller is not None
    return smaller


def _measure_budget(
    make_runtime: MakeRuntime,
    spec: RunSpec,
    limits: Mapping[str, Any],
    context: Context,
) -> ConfigRecord:
    """Return the widest submodel that fits the node's budget, measured once for each run."""
    asked = json.dumps([spec.fields(), dict(limits)])
    stored = context.state.config_records.get("fjord-profile")
    if stored is None or stored["asked"] != asked:
        torch.set_num_threads(1)
        runtime = _prepare_runtime(make_runtime, spec, context)
        config = context.node_config
        own_client = config.get("client-id")
        if "examples" not in limits and type(own_client) is int:
            inputs, _ = runtime.trainer.data.examples(own_client)
            limits = {**limits, "examples": len(inputs)}
        budget = Budget.parse(limits)
        profile = runtime.profile(budget.examples)
        configured = parse_width(str(config.get("ceiling", 1)))
        ceiling = min(profile.widest_fit(budget), configured)
        summary = json.dumps(profile.to_json(budget))
        stored = ConfigRecord({"asked": asked, "ceiling": str(ceiling), "profile": summary})
        context.state.config_records["fjord-profile"] = stored
    return ConfigRecord({"ceiling": stored["ceiling"], "profile": stored["profile"]})


def _reduce_for_load(
    runtime: ClientRuntime,
    task: Assignment,
    config: Mapping[str, Any],
) -> Reduction | None:
    """Return how much less to train than was sent, in the present state of this device."""
    limits = HostLimits.from_config(config)
    if not limits:
        return None
    throttle = _load_throttle(runtime, config.get("profile"))
    return throttle.reduce(task, limits, read_host())


@lru_cache(maxsize=1)
def _load_throttle(runtime: ClientRuntime, profile: str | None) -> LoadThrottle:
    return LoadThrottle(runtime.trainer, runtime.space, profile)
