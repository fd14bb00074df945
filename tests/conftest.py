"""Tests compute with one thread: the number of threads changes sums. Real data is decoded once."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = (
    "1"  # and so do the processes they start: many threads on few cores wait for each other
)
LONG = (
    "test_loopback_runs.py",
    "test_docs.py",
    "test_recipes.py",
    "test_elasticize_zoo.py",
    "test_runner_reliability.py",
    "test_engine.py",
    "test_fleet.py",
    "test_profile.py",
    "test_export.py",
    "test_theorem1.py",
    "test_cifar10.py",
    "test_femnist.py",
    "test_engine_replies.py",
)
LASTING: set[str] = set()
"""Modules that are not of one test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first: at the end they would leave the other cores idle."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True)
def no_module_of_another_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the files that a test imported from its folder: another test's may have their name."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    base = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - LASTING:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(base):
            del sys.modules[name]
        else:
            LASTING.add(name)


@pytest.fixture(scope="session")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which real data is decoded once, by the first process that needs it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return Path(os.environ.get("FJORD_CACHE") or shared / "decoded")
