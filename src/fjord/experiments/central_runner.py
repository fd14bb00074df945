"""Runs training on one place into a run folder, from the start or from the last epoch."""

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
from fjord.experiments.runner import check_same_experiment, score_as_json
from fjord.experiments.runs import RunFolder
from fjord.training.loop import EpochRecord, train_epoch
from fjord.training.optim import SlicedOptimizer

OnEpoch = Callable[[Mapping[str, Any], int, int], None]
"""Told of each epoch: its row of metrics, the epochs done and the epochs in all."""


def run_central(
    setting: CentralExperiment,
    folder: str | Path,
    *,
    recipe: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_epoch: OnEpoch | None = None,
) -> RunFolder:
    """Train into a folder; with `resume`, go on after the last whole epoch."""
    config = {"recipe": dict(recipe or {}), **setting.config()}
    result = RunFolder(Path(folder))
    with one_thread(), torch.random.fork_rng(devices=[]):
        data = setting.data(setting.seed)
        config["data_digest"] = data.digest
        begun = _begun(result, config) if resume else _Begun()
        if not resume:
            RunFolder.create(result.path, config)
        _Central(
            setting, data, setting.training_batches(data), setting.test_set(data), result, on_epoch
        ).run(begun)
    return result


@dataclass(frozen=True)
class _Begun:
    """How far a run has come."""

    stage: int = 0
    epoch: int = 0
    tensors: Mapping[str, Tensor] | None = None


def _begun(folder: RunFolder, config: dict[str, Any]) -> _Begun:
    check_same_experiment(folder, config, CentralExperiment)
    tensors, info = folder.load_for_resume(config["num_rounds"])
    begun = _Begun(info["stage"], info["epoch"], tensors or None)
    folder.keep_rows(lambda row: (row["stage"], row["round"]) < (begun.stage, begun.epoch))
    return begun


@dataclass(frozen=True)
class _Central:
    setting: CentralExperiment
    data: PartitionedData
    batches: ShuffledBatches
    test: TestSet
    folder: RunFolder
    on_epoch: OnEpoch | None

    def run(self, begun: _Begun) -> None:
        for stage, target in enumerate(self.setting.targets):
            if stage >= begun.stage:
                self._train(stage, target, begun if stage == begun.stage else _Begun(stage))
        self.folder.write_json("clients.json", {})

    def _train(self, stage: int, target: Width, begun: _Begun) -> None:
        setting, model = self.setting, self.setting.build_model(self.data, target)
        stepper = SlicedOptimizer(
            model, partial(torch.optim.SGD, lr=setting.lr, momentum=setting.momentum)
        )
        if begun.tensors:
            _restore(model, stepper, begun.tensors)
        for epoch in range(begun.epoch, setting.epochs):
            self._epoch(model, stepper, stage, epoch)
            self.folder.save_checkpoint(
                _snapshot(model, stepper), {"stage": stage, "epoch": epoch + 1}
            )
        model.save(self.folder.path / f"model-{str(target).replace('/', 'of')}.safetensors")
        self.folder.save_checkpoint({}, {"stage": stage + 1, "epoch": 0})

    def _epoch(self, model: ElasticModel, stepper: SlicedOptimizer, stage: int, epoch: int) -> None:
        setting, started = self.setting, time.monotonic()
        stepper.full.param_groups[0]["lr"] = setting.lr_at(epoch)
        objective = OBJECTIVES[setting.method]()
        done = train_epoch(
            model, stepper, self.batches, index=epoch, objective=objective, seed=setting.seed
        )
        row = {**self._row(model, stage, done), "seconds": round(time.monotonic() - started, 4)}
        self.folder.append([row])
        if self.on_epoch:
            count = len(setting.targets)
            self.on_epoch(row, stage * setting.epochs + epoch + 1, count * setting.epochs)

    def _row(self, model: ElasticModel, stage: int, done: EpochRecord) -> dict[str, Any]:
        """Return an epoch as federated runs write a round."""
        setting, last = self.setting, done.index + 1 == self.setting.epochs
        tested = (
            score_widths(model, self.test)
            if last or (done.index + 1) % setting.eval_every == 0
            else {}
        )
        row = {
            "stage": stage,
            "target": str(setting.targets[stage]),
            "round": done.index,
            "lr": done.lr,
        }
        row |= {
            "loss": done.loss,
            "examples": len(self.batches.inputs),
            "tiers": {},
            "shells": {},
            "dropped": {},
        }
        row |= {"scores": {str(width): score_as_json(score) for width, score in tested.items()}}
        if last and setting.method == "single" and setting.targets[stage] == 1:
            row["random"] = score_random_units(
                model, self.test, setting.widths, setting.draws, setting.seed
            )
        return row


def _snapshot(model: ElasticModel, stepper: SlicedOptimizer) -> dict[str, Tensor]:
    return {f"model/{key}": tensor for key, tensor in model.state_dict().items()} | _memory(stepper)


def _memory(stepper: SlicedOptimizer) -> dict[str, Tensor]:
    """Return what the optimizer remembers of each weight, in its own storage."""
    states = {key: stepper.full.state[parameter] for key, parameter in stepper.params.items()}
    return {
        f"memory/{key}/{name}": value
        for key, state in states.items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def _restore(model: ElasticModel, stepper: SlicedOptimizer, tensors: Mapping[str, Tensor]) -> None:
    state = {
        key.removeprefix("model/"): value
        for key, value in tensors.items()
        if key.startswith("model/")
    }
    model.load_state_dict(state)
    for key, value in _memory(stepper).items():
        value.copy_(tensors[key])
