"""FjORD: Ordered Dropout for any PyTorch model, and federated training over unequal devices."""

from fjord.elastic.elasticize import elasticize
from fjord.elastic.errors import ElasticityError
from fjord.elastic.model import ElasticModel
from fjord.elastic.rules.call import Call
from fjord.elastic.storage import load, read_cut, read_info
from fjord.evaluate import Score, evaluate, score
from fjord.footprint import Footprint, footprints
from fjord.objective import cross_entropy, plain, self_distillation
from fjord.optim import SlicedOptimizer
from fjord.seeding import derive
from fjord.train import Epoch, fit, train_step
from fjord.width import Width, WidthSpace, kept_units, parse_width, uniform

__all__ = [
    "Call",
    "ElasticModel",
    "ElasticityError",
    "Epoch",
    "Footprint",
    "Score",
    "SlicedOptimizer",
    "Width",
    "WidthSpace",
    "cross_entropy",
    "derive",
    "elasticize",
    "evaluate",
    "fit",
    "footprints",
    "kept_units",
    "load",
    "parse_width",
    "plain",
    "read_cut",
    "read_info",
    "score",
    "self_distillation",
    "train_step",
    "uniform",
]
