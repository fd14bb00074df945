"""A trainer keeps nothing of a client that is done."""

import gc
import weakref
from fractions import Fraction

import torch
from profiles import mlp, quick  # noqa: F401

import fjord
from fjord.core.width import uniform_widths
from fjord.experiments.profiling.workload import federation_of_model


def test_a_trainer_keeps_no_batch_of_a_client_and_after_a_shortage_no_network():
    federation = federation_of_model(mlp(), torch.randn(4, 12), uniform_widths(2), 8, 1)
    seen = []
    prepare = lambda x, generator: seen.append(weakref.ref(x)) or x  # noqa: E731
    federation.data = fjord.GeneratedData(
        1, federation.data.examples, federation.data.test, prepare=prepare
    )
    trainer = federation.trainer()
    trainer(federation.assign_at(Fraction(1)))
    (prepared,) = trainer._prepared.values()
    seen += [
        weakref.ref(prepared.model.shared_submodel(width).net) for width in federation.space.widths
    ]
    del prepared
    trainer._prepared.clear()  # as it does before it tries a smaller width
    gc.collect()
    assert len(seen) > 2
    assert all(kept() is None for kept in seen)
