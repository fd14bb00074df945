"""A small trained network and a score for it, for tests of the search and its limits."""

from functools import partial

import torch
from torch import nn

import fjord
from fjord.deploy.limits import CostLimits
from fjord.training.evaluate import score_network

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] @ torch.randn(3, 4, generator=torch.Generator().manual_seed(1))).argmax(1)


def mlp(*hidden, norm=False):
    sizes, layers = (6, *hidden), []
    for a, b in zip(sizes, hidden, strict=False):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 4))


def trained(*hidden, widths=("1/3", "2/3", "1"), norm=False, epochs=8):
    torch.manual_seed(0)
    model = fjord.elasticize(mlp(*hidden, norm=norm), X[:2], widths=widths)
    data = list(zip(X.split(16), Y.split(16), strict=True))
    fjord.fit(model, data, partial(torch.optim.SGD, lr=0.1, momentum=0.9), epochs=epochs, seed=0)
    return model.eval()


def quality(net):
    """Minus the loss: finer than accuracy, so that no two submodels are alike."""
    return -score_network(net, [(X, Y)]).loss


LIMIT = partial(CostLimits, (X[:1],))
