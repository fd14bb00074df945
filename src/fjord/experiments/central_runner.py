"""Runs centralised training into a run folder, from the start or from the last epoch."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fjord.core.threads import one_thread
from fjord.core.width import Width
from fjord.data.federated import PartitionedData, TestSet
from fjord.elastic.model import ElasticModel
from fjord.experiments.central import (
    OBJECTIVES,
    CentralExperiment,
    ShuffledBatches,
    score_random_units,
    score_widths,
)
from fjord.experiments.runner import scores_as_json
from fjord.experiments.runs import RunFolder, check_same_experiment
from fjord.training.loop import EpochRecord, train_epoch
from fjord.training.optim import SlicedOptimizer

OnEpoch = Callable[[Mapping[str, Any], int, int], None]
"""Called after each epoch with its row of metrics, the epochs done and the epochs in all."""


def run_central(
    experiment: CentralExperiment,
    folder: str | Path,
    *,
    recipe: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_epoch: OnEpoch | None = None,
) -> RunFolder:
    """Train into a folder; with `resume`, go on after the last whole epoch."""
    config = {"recipe": dict(recipe or {}), **experiment.config()}
    run_folder = RunFolder(Path(folder))
    with one_thread(), torch.random.fork_rng(devices=[]):
        data = experiment.data(experiment.seed)
        config["data_digest"] = data.digest
        if resume:
            progress = _load_progress(run_folder, config)
        else:
            progress = _Progress()
            RunFolder.create(run_folder.path, config)
        runner = _CentralRunner(
            experiment,
            data,
            experiment.training_batches(data),
            experiment.test_set(data),
            run_folder,
            on_epoch,
        )
        runner.run(progress)
    return run_folder


@dataclass(frozen=True)
class _Progress:
    """How far a run has come."""

    stage: int = 0
    epoch: int = 0
    tensors: Mapping[str, Tensor] | None = None


def _load_progress(folder: RunFolder, config: dict[str, Any]) -> _Progress:
    check_same_experiment(folder, config, CentralExperiment)
    tensors, info = folder.load_for_resume(config["num_rounds"])
    progress = _Progress(info["stage"], info["epoch"], tensors or None)
    folder.keep_rows_before(progress.stage, progress.epoch)
    return progress


@dataclass(frozen=True)
class _CentralRunner:
    experiment: CentralExperiment
    data: PartitionedData
    batches: ShuffledBatches
    test: TestSet
    folder: RunFolder
    on_epoch: OnEpoch | None

    def run(self, progress: _Progress) -> None:
        """Train the models that are left."""
        for stage, target in enumerate(self.experiment.targets):
            if stage == progress.stage:
                self._train_model(stage, target, progress)
            elif stage > progress.stage:
                self._train_model(stage, target, _Progress(stage))
        self.folder.write_json("clients.json", {})

    def _train_model(self, stage: int, target: Width, progress: _Progress) -> None:
        experiment = self.experiment
        model = experiment.build_model(self.data, target)
        make_sgd = partial(torch.optim.SGD, lr=experiment.lr, momentum=experiment.momentum)
        optimizer = SlicedOptimizer(model, make_sgd)
        if progress.tensors:
            _restore(model, optimizer, progress.tensors)
        for epoch in range(progress.epoch, experiment.epochs):
            self._train_epoch(model, optimizer, stage, epoch)
            tensors = _snapshot(model, optimizer)
            self.folder.save_checkpoint(tensors, {"stage": stage, "epoch": epoch + 1})
        file_name = f"model-{str(target).replace('/', 'of')}.safetensors"
        model.save(self.folder.path / file_name)
        self.folder.save_checkpoint({}, {"stage": stage + 1, "epoch": 0})

    def _train_epoch(
        self, model: ElasticModel, optimizer: SlicedOptimizer, stage: int, epoch: int
    ) -> None:
        experiment = self.experiment
        started = time.monotonic()
        optimizer.full.param_groups[0]["lr"] = experiment.lr_at(epoch)
        objective = OBJECTIVES[experiment.method]()
        record = train_epoch(
            model, optimizer, self.batches, index=epoch, objective=objective, seed=experiment.seed
        )
        row = self._metrics_row(model, stage, record)
        row["seconds"] = round(time.monotonic() - started, 4)
        self.folder.append([row])
        if self.on_epoch:
            done = stage * experiment.epochs + epoch + 1
            self.on_epoch(row, done, len(experiment.targets) * experiment.epochs)

    def _metrics_row(self, model: ElasticModel, stage: int, record: EpochRecord) -> dict[str, Any]:
        """Return an epoch as federated runs write a round."""
        experiment = self.experiment
        target = experiment.targets[stage]
        epochs_done = record.index + 1
        is_last = epochs_done == experiment.epochs
        scores = {}
        if is_last or epochs_done % experiment.eval_every == 0:
            scores = score_widths(model, self.test)
        row = {
            "stage": stage,
            "target": str(target),
            "round": record.index,
            "lr": record.lr,
            "loss": record.loss,
            "examples": len(self.batches.inputs),
            "tiers": {},
            "shells": {},
            "dropped": {},
            "scores": scores_as_json(scores),
        }
        if is_last and experiment.method == "single" and target == 1:
            row["random"] = score_random_units(
                model, self.test, experiment.widths, experiment.draws, experiment.seed
            )
        return row


def _snapshot(model: ElasticModel, optimizer: SlicedOptimizer) -> dict[str, Tensor]:
    tensors = {f"model/{key}": tensor for key, tensor in model.state_dict().items()}
    return tensors | _optimizer_memory(optimizer)


def _optimizer_memory(optimizer: SlicedOptimizer) -> dict[str, Tensor]:
    """Return what the optimizer remembers of each weight, in its own storage."""
    memory = {}
    for key, parameter in optimizer.params.items():
        for name, value in optimizer.full.state[parameter].items():
            if isinstance(value, Tensor):
                memory[f"memory/{key}/{name}"] = value
    return memory


def _restore(
    model: ElasticModel, optimizer: SlicedOptimizer, tensors: Mapping[str, Tensor]
) -> None:
    state = {}
    for key, tensor in tensors.items():
        if key.startswith("model/"):
            state[key.removeprefix("model/")] = tensor
    model.load_state_dict(state)
    for key, value in _optimizer_memory(optimizer).items():
        value.copy_(tensors[key])
