"""A federation of one client around a bare model.

Its examples are the example inputs, over and over, with random labels.
"""

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthSpace, uniform_widths
from fjord.data.federated import GeneratedData, TestSet
from fjord.devices.tiers import ListedDevices
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.federated.methods import fjord_kd
from fjord.federated.rounds import Federation, RoundSchedule
from fjord.training.local import LocalTraining


def federation_of_model(
    model: nn.Module | ElasticModel,
    inputs: Tensor | None,
    widths: WidthSpace | None,
    batch_size: int,
    epochs: int,
) -> Federation:
    """Return FjORD with distillation for a model and example inputs."""
    if not isinstance(inputs, Tensor) or not inputs.dim():
        raise UserError("inputs: clients train on one tensor of examples; give a batch of them")
    check_count("batch_size", batch_size)
    check_count("epochs", epochs)
    elastic = _make_elastic(model, inputs, widths)
    method = fjord_kd()
    return Federation(
        elastic,
        _make_data(elastic, inputs, batch_size),
        ListedDevices([Width(1)]),
        method,
        elastic.space,
        elastic.space.largest,
        RoundSchedule(1, 1, 0.01),
        LocalTraining(method.objective, batch_size, epochs),
    )


def check_count(name: str, value: object) -> None:
    """Raise an error unless an argument is a whole number of at least 1."""
    if type(value) is not int or value < 1:
        raise UserError("must be a whole number of at least 1", field=name, value=value)


def _make_elastic(
    model: nn.Module | ElasticModel, inputs: Tensor, widths: WidthSpace | None
) -> ElasticModel:
    if not isinstance(model, ElasticModel):
        return elasticize(model, inputs, widths=widths or uniform_widths(5))
    if widths is not None and widths != model.space:
        raise UserError("widths: an elastic model has its own; give them to fjord.elasticize")
    return model


def _make_data(model: ElasticModel, inputs: Tensor, batch_size: int) -> GeneratedData:
    """Return one client that repeats the example inputs, with random labels the model can give."""
    net = model.cut(model.space.widths[0]).eval()
    with torch.no_grad():
        scores = net(inputs)
    if not isinstance(scores, Tensor) or scores.dim() < 2 or len(scores) != len(inputs):
        raise UserError(
            "model: its output must be scores (examples, ..., classes), "
            "to be trained as clients train it"
        )
    num_rows = max(batch_size, len(inputs))
    rows = torch.arange(num_rows) % len(inputs)
    generator = torch.Generator().manual_seed(0)
    num_classes = scores.shape[-1]
    label_shape = (num_rows, *scores.shape[1:-1])
    labels = torch.randint(num_classes, label_shape, generator=generator)
    owners = torch.full((len(inputs),), -1)
    test = TestSet(inputs, labels[: len(inputs)], owners)
    return GeneratedData(1, lambda _: (inputs[rows], labels), test)
