"""An experiment as a value: model, data, method, devices and numbers. A recipe is a function that returns one."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.threads import one_thread
from fjord.core.width import Width, WidthLike, WidthSpace, as_space, uniform_widths
from fjord.data.federated import FederatedData
from fjord.devices.speed_table import SpeedTable, find_speed_table, parse_deadline
from fjord.devices.tiers import DevicePopulation, VaryingDevices, busy_devices, parse_tiers
from fjord.devices.traces import traced_devices
from fjord.elastic.batchnorm import BatchNormMode
from fjord.elastic.description import restore_model
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.experiments.settings import check_field, settings_as_json
from fjord.federated.methods import Method, find_method
from fjord.federated.rounds import Federation, RoundSchedule, ServerState
from fjord.federated.scaffold import ScaffoldState
from fjord.federated.server_optimizers import FedAdam, FedAvgM, ServerOptimizer
from fjord.training.local import LocalTraining

SERVERS: dict[str, type[FedAvgM] | type[FedAdam] | None] = {
    "mean": None,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything a run depends on. `fjord run RECIPE --set key=value` changes one field."""

    name: str
    model: Callable[[], nn.Module]
    """Makes the model; torch's generator is seeded before."""
    data: Callable[[int], FederatedData]
    """Makes the data from the run's seed; torch's generator is seeded before, and for each client."""
    method: str | Method = "fjord-kd"
    widths: WidthSpace = field(default_factory=lambda: uniform_widths(5))
    """P with D_P."""
    freeze: tuple[str, ...] = ()
    norms: BatchNormMode = "layers"

    tiers: str = "uniform-5"
    """uniform-k, shares such as 1/4:0.7,1:0.3, or the path of a file of ceilings (.json, .csv)."""
    drop_scale: Fraction = Fraction(1)
    busy: Fraction = Fraction(0)
    """The share of clients that is one tier weaker in a round."""
    load: str | Callable[[int, int, Width], WidthLike] | None = None
    """A file of lower ceilings (.csv, .json), or a function of client, round and usual ceiling."""
    devices: Callable[[int, int], DevicePopulation] | None = None
    """Makes the devices from the number of clients and the seed; takes the place of `tiers`."""

    clock: str | SpeedTable | None = None
    """Simulated time: phones, or a .csv or .json file with the speed and bandwidth of each tier."""
    deadline: float | str | None = None
    """Simulated seconds, or text such as 2min: whoever is back later is left out of the round."""

    num_rounds: int = 500
    cohort_size: int = 10
    availability: Fraction = Fraction(1)
    local_epochs: int = 1
    max_local_steps: int | None = None
    batch_size: int = 16
    lr: float = 0.1
    milestones: tuple[Fraction, ...] = (Fraction(1, 2), Fraction(3, 4))
    decay: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    average: str = "holders"
    """holders: each weight over the clients that hold it, Eq. (1); all: over all, unchanged where it is not held."""
    prox: float = 0.0
    """FedProx's mu."""
    nova: bool = False
    scaffold: bool = False
    server: str | ServerOptimizer = "mean"
    """mean, fedavgm or fedadam; or a server step of your own."""
    server_lr: float | None = None

    metric: str = "accuracy"
    """accuracy or perplexity: what tables and figures show."""
    eval_every: int = 10
    seed: int = 0
    workers: int = 2
    checkpoint_seconds: float = 5.0
    log: tuple[str, ...] = ()
    """Where metrics go beside the run folder: tensorboard, wandb."""

    def __post_init__(self) -> None:
        self._tidy()
        for name in (
            "num_rounds",
            "cohort_size",
            "local_epochs",
            "batch_size",
            "eval_every",
            "workers",
        ):
            check_field(
                self, name, lambda v: type(v) is int and v >= 1, "a whole number of at least 1"
            )
        for name in ("lr", "decay"):
            check_field(self, name, lambda v: 0 < v < math.inf, "above 0")
        for name in ("prox", "weight_decay", "checkpoint_seconds"):
            check_field(self, name, lambda v: 0 <= v < math.inf, "0 or more")
        for name in ("availability", "drop_scale"):
            check_field(self, name, lambda v: 0 < v <= 1, "above 0 and at most 1")
        check_field(self, "busy", lambda v: 0 <= v <= 1, "at least 0 and at most 1")
        check_field(self, "momentum", lambda v: 0 <= v < 1, "at least 0 and below 1")
        check_field(
            self,
            "max_local_steps",
            lambda v: v is None or (type(v) is int and v >= 1),
            "1 or more, or none",
        )
        check_field(self, "seed", lambda v: type(v) is int, "a whole number")
        for name in ("nova", "scaffold"):
            check_field(self, name, lambda v: type(v) is bool, "true or false")
        check_field(
            self,
            "milestones",
            lambda v: all(0 < m <= 1 for m in v),
            "shares of the rounds, such as 1/2,3/4",
        )
        check_field(
            self, "metric", lambda v: v in ("accuracy", "perplexity"), "accuracy or perplexity"
        )
        check_field(
            self,
            "norms",
            lambda v: v in ("layers", "statistics", "shared"),
            "layers, statistics or shared",
        )
        check_field(self, "average", lambda v: v in ("holders", "all"), "holders or all")
        check_field(
            self,
            "server",
            lambda v: not isinstance(v, str) or v in SERVERS,
            f"one of {', '.join(SERVERS)}",
        )
        check_field(
            self,
            "load",
            lambda v: (
                v is None or callable(v) or (isinstance(v, str) and v.endswith((".csv", ".json")))
            ),
            "a .csv or .json file of lower ceilings, or none",
        )
        check_field(self, "server_lr", lambda v: v is None or 0 < v < math.inf, "above 0, or none")
        check_field(
            self, "log", lambda v: set(v) <= {"tensorboard", "wandb"}, "tensorboard, wandb or both"
        )
        if self.server_lr is not None and self.server not in ("fedavgm", "fedadam"):
            raise UserError(f"server_lr={self.server_lr} needs server=fedavgm or server=fedadam")
        if self.devices is not None and (self.tiers != "uniform-5" or self.drop_scale != 1):
            raise UserError(
                f"tiers={self.tiers}, drop_scale={self.drop_scale}: the recipe makes its devices itself"
            )
        if self.deadline is not None and self.clock is None:
            raise UserError(
                f"deadline={self.deadline:g}s is on the simulated clock: it needs clock=phones or a file"
            )
        if self.nova and self.average == "all":
            raise UserError(
                "average=all cannot go with nova, which divides by the steps of those that hold a weight"
            )
        if self.scaffold and self.momentum:
            raise UserError(
                f"momentum={self.momentum} cannot go with scaffold, which is defined for plain SGD"
            )
        self.find_method()

    def _tidy(self) -> None:
        """Take lists for tuples, widths as text and shares as numbers."""
        exact: dict[str, Any] = {"widths": as_space(self.widths)}
        for name in ("drop_scale", "busy", "availability"):
            exact[name] = _share(name, getattr(self, name))
        exact["deadline"] = None if self.deadline is None else parse_deadline(self.deadline)
        exact["milestones"] = tuple(_share("milestones", m) for m in self.milestones)
        for name in ("log", "freeze"):
            value = getattr(self, name)
            exact[name] = (value,) if isinstance(value, str) else tuple(value)
        for name, value in exact.items():
            object.__setattr__(self, name, value)

    def find_method(self) -> Method:
        """Return the method."""
        return find_method(self.method) if isinstance(self.method, str) else self.method

    def config(self) -> dict[str, Any]:
        """Return all fields as plain data, functions by name."""
        found = settings_as_json(self)
        if self.tiers.endswith((".json", ".csv")) and Path(self.tiers).is_file():
            found["ceilings"] = _digest(self.tiers)
        if isinstance(self.load, str) and Path(self.load).is_file():
            found["load_digest"] = _digest(self.load)
        if clock := self.find_clock():
            found |= {
                "clock": self.clock if isinstance(self.clock, str) else "recipe",
                "deadline": clock.deadline,
            }
            found["clock_tiers"] = [speed.to_row() for speed in clock.tier_speeds]
        return found

    def find_clock(self) -> SpeedTable | None:
        """Return the simulated clock."""
        found = find_speed_table(self.clock) if isinstance(self.clock, str) else self.clock
        if found is None or self.deadline is None:
            return found
        return replace(found, deadline=parse_deadline(self.deadline))

    def federations(self) -> Iterator[Federation]:
        """Yield the models to train, one after the other: one, or one for each width."""
        net, data, devices, targets = self._made()
        for target in targets:
            yield self._federation(self._elastic(net, data, target), data, devices, target)

    def federation(self, stage: int, known: str = "") -> Federation:
        """Return one of the models to train, by its number; `known` is its description, where it was made before."""
        net, data, devices, targets = self._made()
        target = targets[stage]
        model = (
            restore_model("what was known of the model", known, net)
            if known
            else self._elastic(net, data, target)
        )
        return self._federation(model, data, devices, target)

    def _made(self) -> tuple[nn.Module, FederatedData, DevicePopulation, tuple[Width, ...]]:
        for name in ("load", "tiers"):
            value = getattr(self, name)
            if (
                isinstance(value, str)
                and value.endswith((".csv", ".json"))
                and not Path(value).is_file()
            ):
                raise UserError(
                    f"{name}={value}: there is no such file"
                )  # before data is made, which may take long
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "data"))
            data = self.data(self.seed)
            torch.manual_seed(derive_seed(self.seed, "weights"))
            net = self.model()
        devices = self.find_devices(data.num_clients)
        lowest = self.widths.up_to(devices.tiers[0]).largest
        return net, data, devices, self.find_method().targets(self.widths, lowest)

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

    def _elastic(self, net: nn.Module, data: FederatedData, target: Width) -> ElasticModel:
        space = self.widths if self.find_method().nested else WidthSpace.of([target])
        return elasticize(
            net, data.test.batch(0, 2)[0], widths=space, freeze=self.freeze, norms=self.norms
        )

    def _federation(
        self, model: ElasticModel, data: FederatedData, devices: DevicePopulation, target: Width
    ) -> Federation:
        method = self.find_method()
        schedule = RoundSchedule(
            self.num_rounds,
            self.cohort_size,
            self.lr,
            self.milestones,
            self.decay,
            self.availability,
            self.eval_every,
        )
        training = LocalTraining(
            method.objective,
            self.batch_size,
            self.local_epochs,
            self.max_local_steps,
            self.momentum,
            self.weight_decay,
            self.prox,
        )
        state = ServerState(
            scaffold=ScaffoldState(model, data.num_clients) if self.scaffold else None
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
            step=self._step(),
            nova=self.nova,
            take_all=self.average == "all",
            clock=self.find_clock(),
            state=state,
        )

    def _step(self) -> ServerOptimizer | None:
        if not isinstance(self.server, str):
            return self.server
        kind = SERVERS[self.server]
        if kind is None:
            return None
        return kind() if self.server_lr is None else kind(lr=self.server_lr)


def _digest(path: str) -> str:
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()


def _share(name: str, value: Any) -> Fraction:
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{name}={value!r} must be a number such as '1/4' or 0.25") from None
