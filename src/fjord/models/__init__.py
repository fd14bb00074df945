"""The paper's models, written as ordinary modules."""

from fjord.models.cnn import femnist_cnn
from fjord.models.linear import two_layer_linear
from fjord.models.resnet import cifar_resnet18
from fjord.models.rnn import shakespeare_rnn

__all__ = ["cifar_resnet18", "femnist_cnn", "shakespeare_rnn", "two_layer_linear"]
