"""FjORD: Ordered Dropout for any PyTorch model, and federated training over unequal devices."""

from fjord.data.federated import FederatedData, Generated, Partitioned, TestSet, partition
from fjord.data.own import federate
from fjord.devices.budget import Budget
from fjord.devices.clock import Clock, find_clock
from fjord.devices.profile import Profile
from fjord.devices.tiers import Devices, Listed, Tiers, Varying, busy, read_ceilings, shared_tiers, uniform_tiers
from fjord.elastic.elasticize import elasticize
from fjord.elastic.errors import ElasticityError
from fjord.elastic.model import ElasticModel
from fjord.elastic.recalibrate import recalibrate
from fjord.elastic.rules.call import Call
from fjord.elastic.storage import load, read_cut, read_info
from fjord.evaluate import Score, evaluate, score
from fjord.experiment import Experiment
from fjord.exports.export import Exported, export
from fjord.federation import RoundRecord
from fjord.footprint import Footprint, footprints
from fjord.inference.controller import Controller
from fjord.inference.latency import Latency, latencies
from fjord.inference.limits import Limits
from fjord.inference.search import Found, search
from fjord.methods import METHODS, Grant, Method, find_method
from fjord.objective import cross_entropy, plain, self_distillation
from fjord.optim import SlicedOptimizer
from fjord.profiling.profile import profile
from fjord.runner import run
from fjord.runs import RunFolder
from fjord.seeding import derive
from fjord.strategies.server import FedAdam, FedAvgM
from fjord.train import Epoch, fit, train_step
from fjord.width import Width, WidthSpace, kept_units, parse_width, uniform

__all__ = [
    "METHODS",
    "Budget",
    "Call",
    "Controller",
    "Clock",
    "Devices",
    "ElasticModel",
    "ElasticityError",
    "Epoch",
    "Experiment",
    "Exported",
    "FedAdam",
    "FedAvgM",
    "FederatedData",
    "Footprint",
    "Found",
    "Generated",
    "Grant",
    "Latency",
    "Limits",
    "Listed",
    "Method",
    "Partitioned",
    "Profile",
    "RoundRecord",
    "RunFolder",
    "Score",
    "SlicedOptimizer",
    "TestSet",
    "Tiers",
    "Varying",
    "Width",
    "WidthSpace",
    "busy",
    "cross_entropy",
    "derive",
    "elasticize",
    "evaluate",
    "export",
    "federate",
    "find_clock",
    "find_method",
    "fit",
    "footprints",
    "kept_units",
    "latencies",
    "load",
    "parse_width",
    "partition",
    "plain",
    "profile",
    "read_ceilings",
    "read_cut",
    "read_info",
    "recalibrate",
    "run",
    "score",
    "search",
    "self_distillation",
    "shared_tiers",
    "train_step",
    "uniform",
    "uniform_tiers",
]
