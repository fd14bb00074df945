"""The device side: a ClientApp that trains the slice it is sent on its own data, with the usual local training."""

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
from fjord.engines.flower.engine import RunSpec
from fjord.engines.flower.throttle import LoadThrottle
from fjord.training.local import Assignment, ClientTrainer, Reduction


@dataclass(frozen=True)
class ClientRuntime:
    """All a process needs to train clients of one experiment."""

    trainer: ClientTrainer
    places: SliceIndex
    space: WidthSpace
    """P."""
    profile: Callable[[int | None], DeviceProfile]
    """Measures what training costs on this machine, with so many examples."""


def client_app(make: Callable[[RunSpec], ClientRuntime]) -> ClientApp:
    """Return the app of a device; `make` builds the experiment, and should remember it for the next message."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train one client."""
        torch.set_num_threads(1)  # sums depend on it
        head, blocks = unpack_content(message.content)
        device = _device(make, RunSpec.of(head), context)
        task = decode_task(head, blocks, device.trainer.model, device.places)
        mine = context.node_config.get("client-id")
        if mine is not None and mine != task.client_id:
            raise UserError(
                f"this node is client {mine}, and was asked to train client {task.client_id}"
            )
        update = device.trainer(task, _eased(device, task, context.node_config))
        trained = (
            device.trainer.parts.smaller(task, update.reduced.ceiling) if update.reduced else task
        )
        assert trained is not None
        return Message(encode_update(trained, update), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """Say which client this node is, if it is only one, and what it can carry."""
        HostLimits.from_config(
            context.node_config
        )  # what is wrong with them is said before there is anything to train
        keys = [key for key in ("client-id", "ceiling") if key in context.node_config]
        told = ConfigRecord({key: context.node_config[key] for key in keys})
        limits = {
            key: context.node_config[key] for key in BUDGET_LIMITS if key in context.node_config
        }
        if limits:
            order = RunSpec.of(message.content.config_records["order"])
            try:
                told.update(_measured(make, order, limits, context))
            except (
                ValueError
            ) as error:  # said as a fact: Flower would wrap it, and not say which client this is
                told["fault"] = str(error)
        return Message(RecordDict({"node": told}), reply_to=message)

    return app


def _device(
    make: Callable[[RunSpec], ClientRuntime], order: RunSpec, context: Context
) -> ClientRuntime:
    """Make the experiment; its plan is kept by the node, as each message may have a process of its own."""
    asked = json.dumps(order.fields())
    kept = context.state.config_records.get("fjord-plan")
    if kept is not None and kept["asked"] == asked:
        return make(replace(order, known=str(kept["model"])))
    device = make(order)
    if (
        device.trainer.model.blueprint.route == "module"
    ):  # a graph would have to be traced again all the same
        told = ConfigRecord({"asked": asked, "model": describe_model(device.trainer.model)})
        context.state.config_records["fjord-plan"] = told
    return device


def _measured(
    make: Callable[[RunSpec], ClientRuntime],
    order: RunSpec,
    limits: Mapping[str, Any],
    context: Context,
) -> ConfigRecord:
    """Return the widest submodel that fits the node's budget, measured at the first question of a run."""
    asked = json.dumps([order.fields(), dict(limits)])
    known = context.state.config_records.get("fjord-profile")
    if known is None or known["asked"] != asked:
        torch.set_num_threads(1)
        device, mine = _device(make, order, context), context.node_config.get("client-id")
        if "examples" not in limits and type(mine) is int:
            limits = {**limits, "examples": len(device.trainer.data.examples(mine)[0])}
        budget = Budget.parse(limits)
        profile = device.profile(budget.examples)
        ceiling = min(
            profile.widest_fit(budget), parse_width(str(context.node_config.get("ceiling", 1)))
        )
        told = json.dumps(profile.to_json(budget))
        known = ConfigRecord({"asked": asked, "ceiling": str(ceiling), "profile": told})
        context.state.config_records["fjord-profile"] = known
    return ConfigRecord({"ceiling": known["ceiling"], "profile": known["profile"]})


def _eased(device: ClientRuntime, task: Assignment, config: Mapping[str, Any]) -> Reduction | None:
    """Return how much less to train than was sent, as this device is just now."""
    limits = HostLimits.from_config(config)
    return (
        _ease(device, config.get("profile")).reduced(task, limits, read_host()) if limits else None
    )


@lru_cache(maxsize=1)
def _ease(device: ClientRuntime, profile: str | None) -> LoadThrottle:
    return LoadThrottle(device.trainer, device.space, profile)
