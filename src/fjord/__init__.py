"""FjORD: Ordered Dropout for any PyTorch model, and federated training over unequal devices."""

from importlib.metadata import version

from fjord.core.errors import UserError
from fjord.core.width import WidthSpace, uniform_widths
from fjord.data.federated import FederatedData, GeneratedData, partition_tensors
from fjord.data.from_dataset import partition_dataset
from fjord.deploy.controller import WidthController
from fjord.deploy.exports.export import export_model
from fjord.deploy.latency import measure_latencies
from fjord.deploy.search import search_widths
from fjord.devices.budget import Budget
from fjord.elastic.elasticize import elasticize
from fjord.elastic.errors import ElasticityError
from fjord.elastic.footprint import measure_footprints
from fjord.elastic.model import ElasticModel
from fjord.elastic.recalibrate import recalibrate
from fjord.elastic.storage import load_model
from fjord.experiments.experiment import Experiment
from fjord.experiments.profiling.profile import profile_training
from fjord.experiments.runner import run_experiment
from fjord.experiments.runs import RunFolder
from fjord.federated.methods import Method
from fjord.training.evaluate import evaluate
from fjord.training.loop import fit, train_step
from fjord.training.objective import ordered_dropout, self_distillation
from fjord.training.optim import SlicedOptimizer

__version__ = version("fjord-fl")

__all__ = [
    "__version__",
    "Budget",
    "ElasticModel",
    "ElasticityError",
    "Experiment",
    "FederatedData",
    "GeneratedData",
    "Method",
    "RunFolder",
    "SlicedOptimizer",
    "UserError",
    "WidthController",
    "WidthSpace",
    "elasticize",
    "evaluate",
    "export_model",
    "fit",
    "load_model",
    "measure_footprints",
    "measure_latencies",
    "ordered_dropout",
    "partition_dataset",
    "partition_tensors",
    "profile_training",
    "recalibrate",
    "run_experiment",
    "search_widths",
    "self_distillation",
    "train_step",
    "uniform_widths",
]
