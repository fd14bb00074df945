"""Runs an experiment into a run folder, from the start or from its last checkpoint."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fjord.core.width import Width, parse_width
from fjord.devices.tiers import usual_devices
from fjord.engines.in_process import InProcessEngine
from fjord.experiments.dashboards import MetricsWriter, open_dashboards
from fjord.experiments.experiment import Experiment
from fjord.experiments.runs import RunFolder, check_same_experiment
from fjord.federated.engine import Engine
from fjord.federated.records import RoundRecord
from fjord.federated.rounds import Federation
from fjord.training.evaluate import ExampleScores, Score

OnRound = Callable[[RoundRecord, int, int], None]
"""Called after each round with its record, the rounds done and the rounds in all."""
MakeEngine = Callable[[Federation, int], Engine]
"""Makes the engine of one of the experiment's models, from the model in training and its number."""


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

    `recipe` is written into the configuration: how to make the same experiment again. `engine`
    makes the engine on which clients train; by default they train on this machine.
    """
    config = {"recipe": dict(recipe or {}), **experiment.config()}
    run_folder = RunFolder(Path(folder))
    models = experiment.federations()
    first = next(models)  # what is wrong with an experiment shows before a folder is made for it
    config["targets"] = [str(target) for target in first.targets]
    digest = getattr(first.data, "digest", "")
    if digest:
        config["data_digest"] = digest
    if resume:
        check_same_experiment(run_folder, config)
    else:
        RunFolder.create(run_folder.path, config)
    make_engine = engine or _make_in_process_engine(experiment.workers)
    runner = _ExperimentRunner(experiment, run_folder, on_round, make_engine)
    with run_folder.lock():
        if resume:
            runner.load_checkpoint()
        with open_dashboards(experiment, run_folder.path, runner.first_step()) as writers:
            runner.run_model(0, first, writers)
            for stage, federation in enumerate(models, 1):
                runner.run_model(stage, federation, writers)
    return run_folder


def _make_in_process_engine(workers: int) -> MakeEngine:
    def make_engine(federation: Federation, stage: int) -> Engine:
        return InProcessEngine(federation, workers=workers)

    return make_engine


@dataclass
class _ExperimentRunner:
    experiment: Experiment
    folder: RunFolder
    on_round: OnRound | None
    make_engine: MakeEngine
    start_stage: int = 0
    start_round: int = 0
    restored: dict[str, Any] = field(default_factory=dict)
    """The state of the model that a resumed run goes on with; empty if it begins a new model."""
    checkpoint_time: float = field(default_factory=time.monotonic)
    """When the last checkpoint was written."""
    checkpoint_cost: float = 0.0
    """Seconds that it took to write."""

    def load_checkpoint(self) -> None:
        """Go back to the last checkpoint."""
        self.folder.remove_drafts()
        tensors, info = self.folder.load_for_resume(self.experiment.num_rounds)
        self.start_stage = info["stage"]
        self.start_round = info["round"]
        if tensors:
            self.restored = {**info, **tensors}
        self.folder.keep_rows_before(self.start_stage, self.start_round)

    def first_step(self) -> int:
        """Return the number of the first round that is run, over all models."""
        return self.start_stage * self.experiment.num_rounds + self.start_round

    def run_model(self, stage: int, federation: Federation, writers: list[MetricsWriter]) -> None:
        """Train one of the models, unless it was trained before the run was resumed."""
        if stage < self.start_stage:
            return
        if self.restored:
            federation.load_state_dict(self.restored)
            self.restored = {}
        with self.make_engine(federation, stage) as engine:
            last: RoundRecord | None = None
            for last in federation.rounds(engine):
                self._finish_round(stage, federation, last, writers)
            if last:
                example_scores = last.example_scores
            else:
                example_scores = engine.evaluate(federation.model, federation.model.space.widths)
        self._finish_model(stage, federation, example_scores)

    def _finish_round(
        self,
        stage: int,
        federation: Federation,
        record: RoundRecord,
        writers: list[MetricsWriter],
    ) -> None:
        """Write down a round."""
        row = metrics_row(record, stage)
        self.folder.append([row])
        for writer in writers:
            writer.write(row)
        self._maybe_checkpoint(stage, federation)
        if self.on_round:
            num_rounds = self.experiment.num_rounds
            done = stage * num_rounds + record.round_index + 1
            self.on_round(record, done, len(federation.targets) * num_rounds)

    def _finish_model(
        self,
        stage: int,
        federation: Federation,
        example_scores: Mapping[Width, ExampleScores],
    ) -> None:
        """Save a trained model, and how clients do with it."""
        name = "model"
        if len(federation.targets) > 1:
            name = f"model-{str(federation.target).replace('/', 'of')}"
        federation.model.save(self.folder.path / f"{name}.safetensors")
        before = {}
        if self.folder.has("clients.json"):
            before = self.folder.read_json("clients.json")
        scores = _client_scores(federation, example_scores)
        self.folder.write_json("clients.json", _widest_scores(before, scores))
        self.folder.save_checkpoint({}, {"stage": stage + 1, "round": 0})

    def _maybe_checkpoint(self, stage: int, federation: Federation) -> None:
        """Write a checkpoint now and then, so that it costs at most a twentieth of the time."""
        started = time.monotonic()
        interval = max(self.experiment.checkpoint_seconds, 20 * self.checkpoint_cost)
        if started - self.checkpoint_time < interval:
            return
        tensors: dict[str, Tensor] = {}
        info: dict[str, Any] = {"stage": stage}
        for key, value in federation.state_dict().items():
            if isinstance(value, Tensor):
                tensors[key] = value
            else:
                info[key] = value
        self.folder.save_checkpoint(tensors, info)
        self.checkpoint_time = time.monotonic()
        if self.experiment.checkpoint_seconds:
            self.checkpoint_cost = self.checkpoint_time - started


def metrics_row(record: RoundRecord, stage: int) -> dict[str, Any]:
    """Return a round as one row of metrics."""
    tiers = record.tiers.values()
    row = {
        "stage": stage,
        "target": str(record.target),
        "round": record.round_index,
        "lr": record.lr,
        "loss": record.loss if record.examples else None,
        "examples": record.examples,
        "seconds": round(record.seconds, 4),
        "macs": sum(tier.macs for tier in tiers),
        "bytes_down": sum(tier.bytes_down for tier in tiers),
        "bytes_up": sum(tier.bytes_up for tier in tiers),
        "tiers": {str(width): asdict(tier) for width, tier in sorted(record.tiers.items())},
        "shells": _with_text_keys(record.shells),
        "dropped": _with_text_keys(record.dropped),
        "scores": scores_as_json(record.scores),
    }
    if record.simulated_seconds is not None:
        row["simulated_seconds"] = round(record.simulated_seconds, 6)
    if record.reduced:
        row["reduced"] = _with_text_keys(record.reduced)
    if record.engine:
        row["engine"] = record.engine
    return row


def _with_text_keys(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items()}


def score_as_json(score: Score) -> dict[str, float]:
    """Return a score as plain data."""
    return {"loss": score.loss, "accuracy": score.accuracy, "perplexity": score.perplexity}


def scores_as_json(scores: Mapping[Width, Score]) -> dict[str, dict[str, float]]:
    """Return the scores at some widths as plain data."""
    return {str(width): score_as_json(score) for width, score in scores.items()}


def _client_scores(
    federation: Federation, example_scores: Mapping[Width, ExampleScores]
) -> dict[str, dict[str, Any]]:
    """Return how each client of the test set does with the widest submodel it can carry."""
    owners = federation.data.test.owners
    devices = usual_devices(federation.devices)
    scores: dict[str, dict[str, Any]] = {}
    for client in torch.unique(owners[owners >= 0]).tolist():
        ceiling = federation.allocator.usable_ceiling(client, devices.ceiling(client, 0))
        row: dict[str, Any] = {"ceiling": str(ceiling), "width": None}
        own_examples = (owners == client).numpy()
        fitting = [width for width in example_scores if width <= ceiling]
        if fitting:
            widest = max(fitting)
            examples = example_scores[widest]
            if examples.count[own_examples].any():
                score = examples.score(own_examples)
                row |= {"width": str(widest), "count": score.count, **score_as_json(score)}
        scores[str(client)] = row
    return scores


def _widest_scores(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Keep for each client the score of the widest model it can carry, over all models trained."""
    scores = {}
    for client, row in after.items():
        earlier = before.get(client, {})
        scores[client] = max(row, earlier, key=_scored_width)
    return scores


def _scored_width(row: dict[str, Any]) -> Width:
    if row and row["width"]:
        return parse_width(row["width"])
    return Width(0)
