"""Runs an experiment into a run folder, from the start or from its last checkpoint."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.width import Width, parse_width
from fjord.devices.tiers import usual_devices
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.dashboards import MetricsWriter, open_dashboards
from fjord.experiments.experiment import Experiment
from fjord.experiments.runs import RunFolder
from fjord.experiments.settings import default_settings
from fjord.federated.engine import Engine
from fjord.federated.rounds import Federation, RoundRecord
from fjord.federated.scaffold import ControlVariate
from fjord.training.evaluate import Score
from fjord.training.local import ClientTrainer

OnRound = Callable[[RoundRecord, int, int], None]
"""Told of each round: its record, the rounds done and the rounds in all."""
MakeEngine = Callable[[Federation, ClientTrainer, int], Engine]
"""Makes the engine of one of the experiment's models: the model in training, its local training, and its number."""


def run_experiment(
    experiment: Experiment,
    folder: str | Path,
    *,
    recipe: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    engine: MakeEngine | None = None,
) -> RunFolder:
    """Run an experiment into a folder; with `resume`, go on from the folder's checkpoint.

    `recipe` is written into the configuration: how to make the same experiment again. `engine` says where clients
    train; by default on this machine.
    """
    config = {"recipe": dict(recipe or {}), **experiment.config()}
    runner = _Runner(
        experiment, RunFolder(Path(folder)), on_round, engine or _in_process(experiment.workers)
    )
    models = experiment.federations()
    first = next(models)  # what is wrong with an experiment shows before a folder is made for it
    config["targets"] = [str(target) for target in first.targets]
    if digest := getattr(first.data, "digest", ""):
        config["data_digest"] = digest
    if resume:
        check_same_experiment(runner.folder, config)
    else:
        RunFolder.create(Path(folder), config)
    with runner.folder.lock():
        if resume:
            runner.resume()
        runner.run(chain([first], models))
    return runner.folder


@dataclass
class _Runner:
    experiment: Experiment
    folder: RunFolder
    on_round: OnRound | None
    make_engine: MakeEngine
    stage: int = 0
    restored: tuple[dict[str, Tensor], dict[str, Any]] | None = None
    written: float = field(default_factory=time.monotonic)
    cost: float = 0.0

    def resume(self) -> None:
        """Go back to the last checkpoint."""
        for draft in self.folder.path.glob(".*.tmp"):  # what a kill left half written
            draft.unlink()
        tensors, info = self.folder.load_for_resume(self.experiment.num_rounds)
        self.stage, rounds = info["stage"], info["round"]
        self.restored = (tensors, info)
        self.folder.keep_rows(lambda row: (row["stage"], row["round"]) < (self.stage, rounds))

    def run(self, models: Iterable[Federation]) -> None:
        """Train the models that are left."""
        first_step = self.stage * self.experiment.num_rounds + (
            self.restored[1]["round"] if self.restored else 0
        )
        with open_dashboards(self.experiment, self.folder.path, first_step) as writers:
            for stage, federation in enumerate(models):
                if stage < self.stage:
                    continue
                self.stage = stage
                if self.restored:
                    _restore(federation, *self.restored)
                    self.restored = None
                self._train(federation, writers)

    def _train(self, federation: Federation, writers: list[MetricsWriter]) -> None:
        experiment = self.experiment
        stages = len(federation.targets)
        trainer = federation.trainer()
        with self.make_engine(federation, trainer, self.stage) as engine:
            last: RoundRecord | None = None
            for last in federation.rounds(engine):
                row = metrics_row(last, self.stage)
                self.folder.append([row])
                for writer in writers:
                    writer.write(row)
                self._maybe_checkpoint(federation)
                if self.on_round:
                    done = self.stage * experiment.num_rounds + last.round_index + 1
                    self.on_round(last, done, stages * experiment.num_rounds)
            tested = (
                last.tested
                if last
                else engine.test(federation.model, federation.model.space.widths)
            )
        name = "model" if stages == 1 else f"model-{str(federation.target).replace('/', 'of')}"
        federation.model.save(self.folder.path / f"{name}.safetensors")
        scores = _client_scores(federation, tested)
        known = self.folder.read_json("clients.json") if self.folder.has("clients.json") else {}
        self.folder.write_json("clients.json", _widest(known, scores))
        self.folder.save_checkpoint({}, {"stage": self.stage + 1, "round": 0})

    def _maybe_checkpoint(self, federation: Federation) -> None:
        """Write a checkpoint now and then, so that it costs at most a twentieth of the time."""
        started = time.monotonic()
        if started - self.written < max(self.experiment.checkpoint_seconds, 20 * self.cost):
            return
        tensors, info = _snapshot(federation)
        self.folder.save_checkpoint(tensors, {"stage": self.stage, **info})
        self.written = time.monotonic()
        self.cost = self.written - started if self.experiment.checkpoint_seconds else 0.0


def _in_process(workers: int) -> MakeEngine:
    return lambda federation, trainer, stage: InProcessEngine(
        trainer, federation.data.test, workers
    )


def check_same_experiment(
    folder: RunFolder, config: dict[str, Any], kind: type = Experiment
) -> None:
    """Refuse to go on with another experiment than the one begun; what does not change results may differ.

    A setting that is younger than the run had its default value then.
    """
    free = {"workers", "checkpoint_seconds", "log", "recipe"}
    young = {key: value for key, value in default_settings(kind).items() if key in config}
    old = young | folder.config
    for key in sorted((old.keys() | config.keys()) - free):
        if old.get(key) != config.get(key):
            raise UserError(
                f"{folder.path}: was begun with {key}={old.get(key)}, the recipe now says {config.get(key)}; "
                "run it into a new folder"
            )


def metrics_row(record: RoundRecord, stage: int) -> dict[str, Any]:
    """Return a round as one row of metrics."""
    row = {
        "stage": stage,
        "target": str(record.target),
        "round": record.round_index,
        "lr": record.lr,
        "loss": record.loss if record.examples else None,
        "examples": record.examples,
        "seconds": round(record.seconds, 4),
        "macs": sum(tier.macs for tier in record.tiers.values()),
        "bytes_down": sum(tier.bytes_down for tier in record.tiers.values()),
        "bytes_up": sum(tier.bytes_up for tier in record.tiers.values()),
        "tiers": {str(width): asdict(tier) for width, tier in sorted(record.tiers.items())},
        "shells": {str(width): count for width, count in record.shells.items()},
        "dropped": {str(client): why for client, why in record.dropped.items()},
        "scores": {str(width): score_as_json(score) for width, score in record.scores.items()},
    }
    if record.simulated_seconds is not None:
        row["simulated_seconds"] = round(record.simulated_seconds, 6)
    if record.reduced:
        row["reduced"] = {str(client): why for client, why in record.reduced.items()}
    return {**row, "engine": record.engine} if record.engine else row


def score_as_json(score: Score) -> dict[str, float]:
    """Return a score as plain data."""
    return {"loss": score.loss, "accuracy": score.accuracy, "perplexity": score.perplexity}


def _snapshot(federation: Federation) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return all that rounds change, as tensors and plain data."""
    state = federation.state
    tensors = {f"model/{key}": t for key, t in federation.model.state_dict().items()}
    tensors |= {f"memory/{key}": t for key, t in state.memory.items()}
    widths: dict[str, list[str]] = {}
    if state.scaffold:
        tensors |= {f"total/{key}": t for key, t in state.scaffold.total.items()}
        tensors |= {f"holders/{key}": t for key, t in state.scaffold.holders.items()}
        for client, own in state.scaffold.clients.items():
            widths[str(client)] = [str(w) for w in own.widths]
            tensors |= {f"client/{client}/value/{key}": t for key, t in own.tensors.items()}
            tensors |= {
                f"client/{client}/held/{family}": units for family, units in own.held.items()
            }
    return tensors, {"round": state.round_index, "clients": widths}


def _restore(federation: Federation, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Put a snapshot back."""
    state = federation.state
    state.round_index = info["round"]
    if info["round"] == 0 and not tensors:
        return
    federation.model.load_state_dict(_under("model/", tensors))
    state.memory = _under("memory/", tensors)
    if state.scaffold:
        state.scaffold.total, state.scaffold.holders = (
            _under("total/", tensors),
            _under("holders/", tensors),
        )
        for client, widths in info["clients"].items():
            held = _under(f"client/{client}/held/", tensors)
            values = _under(f"client/{client}/value/", tensors)
            order = [key for key in federation.model.tensors if key in values]
            own = ControlVariate(
                held, tuple(map(parse_width, widths)), {key: values[key] for key in order}
            )
            state.scaffold.clients[int(client)] = own
        state.scaffold.end_round()


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}


def _client_scores(
    federation: Federation, tested: Mapping[Width, Any]
) -> dict[str, dict[str, Any]]:
    """Return how each client of the test set does with the widest submodel it can carry."""
    owners = federation.data.test.owners
    scores: dict[str, dict[str, Any]] = {}
    for client in torch.unique(owners[owners >= 0]).tolist():
        ceiling = federation.usable(usual_devices(federation.devices).ceiling(client, 0), client)
        fitting = [width for width in tested if width <= ceiling]
        row: dict[str, Any] = {"ceiling": str(ceiling), "width": None}
        mine = (owners == client).numpy()
        if fitting and tested[max(fitting)].count[mine].any():
            score = tested[max(fitting)].score(mine)
            row |= {"width": str(max(fitting)), "count": score.count, **score_as_json(score)}
        scores[str(client)] = row
    return scores


def _widest(known: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """Keep for each client the score of the widest model it can carry, over all models trained."""

    def width(row: dict[str, Any]) -> Width:
        return parse_width(row["width"]) if row and row["width"] else Width(0)

    return {client: max(row, known.get(client, {}), key=width) for client, row in fresh.items()}
