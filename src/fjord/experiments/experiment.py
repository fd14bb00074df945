"""A federated experiment as a value: model, data, method, devices and numbers.

A recipe is a function that returns one. To add a setting, add one line to `Experiment`.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fjord.core.errors import SettingError
from fjord.core.seeding import derive_seed
from fjord.core.threads import one_thread
from fjord.core.width import Width, WidthLike, WidthSpace, uniform_widths
from fjord.data.federated import FederatedData
from fjord.devices.speed_table import SpeedTable, find_speed_table, parse_deadline
from fjord.devices.tiers import DevicePopulation, VaryingDevices, busy_devices, parse_tiers
from fjord.devices.traces import traced_devices
from fjord.elastic.batchnorm import BatchNormMode
from fjord.elastic.description import restore_model
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.experiments import value_kinds as kinds
from fjord.experiments.settings import accept_settings, recipe_part, setting, settings_as_json
from fjord.federated.aggregation import MeanOverAll, NestedMean
from fjord.federated.fednova import NormalisedMean
from fjord.federated.methods import METHODS, Method, find_method
from fjord.federated.rounds import Federation, MakeAggregator, RoundSchedule
from fjord.federated.server_optimizers import FedAdam, FedAvgM, ServerOptimizer
from fjord.training.local import LocalTraining

SERVERS: dict[str, Callable[..., ServerOptimizer] | None] = {
    "mean": None,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
}
DASHBOARDS = ("tensorboard", "wandb")


def _is_table_path(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(kinds.FILE_SUFFIXES)


def _is_load(value: Any) -> bool:
    return callable(value) or _is_table_path(value)


def _are_dashboards(names: tuple[str, ...]) -> bool:
    return set(names) <= set(DASHBOARDS)


METHOD = kinds.choice_of(METHODS, other=Method)
AVERAGE = kinds.choice_of(("holders", "all"))
SERVER = kinds.choice_of(SERVERS, other=object)
TIERS = kinds.ValueKind("uniform-k, shares, or a file of ceilings", names_file=True)
LOAD = kinds.ValueKind(
    "a .csv or .json file of lower ceilings", check=_is_load, optional=True, names_file=True
)
CLOCK = kinds.ValueKind("phones, or a file of speeds", optional=True, names_file=True)
DEADLINE = kinds.ValueKind("a time such as 60s or 2min", convert=parse_deadline, optional=True)
LOG = kinds.ValueKind(
    "tensorboard, wandb or both",
    parse=kinds.NAMES.parse,
    convert=kinds.as_names,
    check=_are_dashboards,
)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that a federated run depends on.

    `fjord show RECIPE` prints every setting with its value and what it does.
    """

    name: str = field(metadata=recipe_part("The name of the experiment."))
    model: Callable[[], nn.Module] = field(
        metadata=recipe_part("Makes the model; torch's generator is seeded before.")
    )
    data: Callable[[int], FederatedData] = field(
        metadata=recipe_part("Makes the data from the seed; torch's generator is seeded before.")
    )
    method: str | Method = setting("fjord-kd", METHOD, "How unequal clients train together.")
    widths: WidthSpace = setting(
        uniform_widths(5), kinds.WIDTH_SPACE, "The widths P, and how likely each is sampled."
    )
    freeze: tuple[str, ...] = setting((), kinds.NAMES, "Layers that keep all their units.")
    norms: BatchNormMode = setting(
        "layers",
        kinds.NORMS,
        "What each width has of its own: BatchNorm layers, statistics or nothing.",
    )

    tiers: str = setting(
        "uniform-5", TIERS, "Ceilings: uniform-k, shares such as 1/4:0.7,1:0.3, or a file."
    )
    drop_scale: Fraction = setting(
        Fraction(1), kinds.SHARE, "Scales the share of each tier but the top one; 1: equal."
    )
    busy: Fraction = setting(
        Fraction(0), kinds.SHARE_OR_ZERO, "The share of clients one tier weaker in a round."
    )
    load: str | Callable[[int, int, Width], WidthLike] | None = setting(
        None, LOAD, "Lower ceilings: a file, or a function of client, round and usual ceiling."
    )
    devices: Callable[[int, int], DevicePopulation] | None = field(
        default=None,
        metadata=recipe_part("Makes the devices from the number of clients and the seed."),
    )

    clock: str | SpeedTable | None = setting(
        None, CLOCK, "Simulated time: phones, or a file with the speed and link of each tier."
    )
    deadline: float | str | None = setting(
        None, DEADLINE, "Simulated time after which a client is left out of the round."
    )

    num_rounds: int = setting(500, kinds.COUNT, "Rounds of training.")
    cohort_size: int = setting(10, kinds.COUNT, "Clients in a round.")
    availability: Fraction = setting(
        Fraction(1), kinds.SHARE, "The share of clients that can be reached in a round."
    )
    local_epochs: int = setting(1, kinds.COUNT, "Epochs that a client trains in a round.")
    max_local_steps: int | None = setting(
        None, kinds.OPTIONAL_COUNT, "Steps after which a client ends its round."
    )
    batch_size: int = setting(16, kinds.COUNT, "Examples in a step of a client.")
    lr: float = setting(0.1, kinds.POSITIVE_NUMBER, "Step size of the clients.")
    milestones: tuple[Fraction, ...] = setting(
        (Fraction(1, 2), Fraction(3, 4)),
        kinds.MILESTONES,
        "Shares of the rounds after which the step size is multiplied by decay.",
    )
    decay: float = setting(
        0.1, kinds.POSITIVE_NUMBER, "The factor of the step size at a milestone."
    )
    momentum: float = setting(0.0, kinds.NUMBER_BELOW_ONE, "Momentum of the clients' SGD.")
    weight_decay: float = setting(0.0, kinds.NUMBER_FROM_ZERO, "Weight decay of the clients' SGD.")

    average: str = setting(
        "holders",
        AVERAGE,
        "Whom a weight is averaged over: its holders, Eq. (1), or all; others leave it unchanged.",
    )
    prox: float = setting(0.0, kinds.NUMBER_FROM_ZERO, "FedProx's mu.")
    nova: bool = setting(False, kinds.FLAG, "FedNova: average updates by their steps.")
    scaffold: bool = setting(False, kinds.FLAG, "SCAFFOLD: correct the drift of clients.")
    server: str | ServerOptimizer = setting(
        "mean", SERVER, "The server's step: mean, fedavgm or fedadam."
    )
    server_lr: float | None = setting(
        None, kinds.OPTIONAL_NUMBER, "Step size of fedavgm or fedadam; none: its own default."
    )

    metric: str = setting("accuracy", kinds.METRIC, "What tables and figures show.")
    eval_every: int = setting(10, kinds.COUNT, "Rounds from one test to the next.")
    seed: int = setting(0, kinds.WHOLE_NUMBER, "Decides everything random.")
    workers: int = setting(2, kinds.COUNT, "Processes that train clients.", affects_results=False)
    checkpoint_seconds: float = setting(
        5.0,
        kinds.NUMBER_FROM_ZERO,
        "Seconds from one checkpoint to the next, at least.",
        affects_results=False,
    )
    log: tuple[str, ...] = setting(
        (), LOG, "Dashboards that also get the metrics: tensorboard, wandb.", affects_results=False
    )

    def __post_init__(self) -> None:
        accept_settings(self)
        self._check_server()
        self._check_devices()
        self._check_averaging()

    def _check_server(self) -> None:
        if self.server_lr is None:
            return
        optimizers = [name for name, optimizer in SERVERS.items() if optimizer is not None]
        if self.server not in optimizers:
            wanted = " or ".join(f"server={name}" for name in optimizers)
            raise SettingError(f"needs {wanted}", field="server_lr", value=self.server_lr)

    def _check_devices(self) -> None:
        if self.devices is not None and (self.tiers != "uniform-5" or self.drop_scale != 1):
            field_name = "tiers" if self.tiers != "uniform-5" else "drop_scale"
            raise SettingError(
                "has no effect: the recipe makes its devices itself",
                field=field_name,
                value=getattr(self, field_name),
            )
        if self.deadline is not None and self.clock is None:
            raise SettingError(
                "is on the simulated clock, and needs clock=phones or a file",
                field="deadline",
                value=f"{self.deadline:g}s",
            )

    def _check_averaging(self) -> None:
        if self.nova and self.average != "holders":
            raise SettingError(
                "cannot go with nova, which divides by the steps of those that hold a weight",
                field="average",
                value=self.average,
            )
        if self.scaffold and self.momentum:
            raise SettingError(
                "cannot go with scaffold, which is defined for plain SGD",
                field="momentum",
                value=self.momentum,
            )

    def find_method(self) -> Method:
        """Return the method."""
        if isinstance(self.method, str):
            return find_method(self.method)
        return self.method

    def config(self) -> dict[str, Any]:
        """Return all settings as plain data, functions by name, and digests of the files named."""
        config = settings_as_json(self)
        if _is_table_path(self.tiers) and Path(self.tiers).is_file():
            config["ceilings"] = _file_digest(self.tiers)
        if isinstance(self.load, str) and Path(self.load).is_file():
            config["load_digest"] = _file_digest(self.load)
        clock = self.find_clock()
        if clock:
            config["clock"] = self.clock if isinstance(self.clock, str) else "recipe"
            config["deadline"] = clock.deadline
            config["clock_tiers"] = [speed.to_row() for speed in clock.tier_speeds]
        return config

    def find_clock(self) -> SpeedTable | None:
        """Return the simulated clock."""
        clock = find_speed_table(self.clock) if isinstance(self.clock, str) else self.clock
        if clock is None or self.deadline is None:
            return clock
        return replace(clock, deadline=parse_deadline(self.deadline))

    def federations(self) -> Iterator[Federation]:
        """Yield the models to train, one after the other: one, or one for each width."""
        parts = self._build_parts()
        for target in parts.targets:
            model = self._build_model(parts, target)
            yield self._federation(model, parts.data, parts.devices, target)

    def federation(self, stage: int, known: str = "") -> Federation:
        """Return one of the models to train, by its number.

        `known` is the model's description, where it was made before.
        """
        parts = self._build_parts()
        target = parts.targets[stage]
        if known:
            model = restore_model("the description of the model", known, parts.net)
        else:
            model = self._build_model(parts, target)
        return self._federation(model, parts.data, parts.devices, target)

    def _build_parts(self) -> "_ExperimentParts":
        """Make model, data and devices; a missing file is named before data is made."""
        self._check_files()
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "data"))
            data = self.data(self.seed)
            torch.manual_seed(derive_seed(self.seed, "weights"))
            net = self.model()
        devices = self.find_devices(data.num_clients)
        lowest = self.widths.up_to(devices.tiers[0]).largest
        targets = self.find_method().targets(self.widths, lowest)
        return _ExperimentParts(net, data, devices, targets)

    def _check_files(self) -> None:
        for name in ("load", "tiers"):
            value = getattr(self, name)
            if _is_table_path(value) and not Path(value).is_file():
                raise SettingError("names a file that does not exist", field=name, value=value)

    def find_devices(self, num_clients: int) -> DevicePopulation:
        """Return the ceilings of the clients."""
        if self.devices is None:
            found = parse_tiers(self.tiers, num_clients, drop_scale=self.drop_scale, seed=self.seed)
        else:
            found = self.devices(num_clients, self.seed)
        found = busy_devices(found, self.busy, seed=self.seed) if self.busy else found
        if isinstance(self.load, str):
            return traced_devices(found, self.load, num_clients, self.widths.widths[0])
        return found if self.load is None else VaryingDevices(found, self.load)

    def _build_model(self, parts: "_ExperimentParts", target: Width) -> ElasticModel:
        nested = self.find_method().nested
        space = self.widths if nested else WidthSpace.of([target])
        example, _ = parts.data.test.batch(0, 2)
        return elasticize(parts.net, example, widths=space, freeze=self.freeze, norms=self.norms)

    def _federation(
        self, model: ElasticModel, data: FederatedData, devices: DevicePopulation, target: Width
    ) -> Federation:
        method = self.find_method()
        schedule = RoundSchedule(
            num_rounds=self.num_rounds,
            cohort_size=self.cohort_size,
            lr=self.lr,
            milestones=self.milestones,
            decay=self.decay,
            availability=self.availability,
            eval_every=self.eval_every,
        )
        training = LocalTraining(
            objective=method.objective,
            batch_size=self.batch_size,
            epochs=self.local_epochs,
            max_steps=self.max_local_steps,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            prox=self.prox,
        )
        return Federation(
            model=model,
            data=data,
            devices=devices,
            method=method,
            space=self.widths,
            target=target,
            schedule=schedule,
            training=training,
            seed=self.seed,
            server_optimizer=self._server_optimizer(),
            make_aggregator=self._aggregator_factory(training),
            scaffolded=self.scaffold,
            speeds=self.find_clock(),
        )

    def _aggregator_factory(self, training: LocalTraining) -> MakeAggregator:
        if self.nova:
            return partial(NormalisedMean, training=training)
        if self.average == "all":
            return MeanOverAll
        return NestedMean

    def _server_optimizer(self) -> ServerOptimizer | None:
        if not isinstance(self.server, str):
            return self.server
        optimizer = SERVERS[self.server]
        if optimizer is None:
            return None
        if self.server_lr is None:
            return optimizer()
        return optimizer(lr=self.server_lr)


@dataclass(frozen=True)
class _ExperimentParts:
    """What all models of an experiment share."""

    net: nn.Module
    data: FederatedData
    devices: DevicePopulation
    targets: tuple[Width, ...]


def _file_digest(path: str) -> str:
    content = Path(path).read_bytes()
    return hashlib.blake2b(content, digest_size=8).hexdigest()
