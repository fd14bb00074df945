"""A federation of one client around a bare model: random examples of the shape of its inputs, with random labels."""

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
    for name, value in (("batch_size", batch_size), ("epochs", epochs)):
        if type(value) is not int or value < 1:
            raise UserError(f"{name}={value} must be a whole number of at least 1")
    elastic = (
        model
        if isinstance(model, ElasticModel)
        else elasticize(model, inputs, widths=widths or uniform_widths(5))
    )
    if isinstance(model, ElasticModel) and widths is not None and widths != model.space:
        raise UserError("widths: an elastic model has its own; give them to fjord.elasticize")
    method, how = fjord_kd(), LocalTraining(fjord_kd().objective, batch_size, epochs)
    data = _examples(elastic, inputs, batch_size)
    one = ListedDevices([Width(1)])
    return Federation(
        elastic,
        data,
        one,
        method,
        elastic.space,
        elastic.space.largest,
        RoundSchedule(1, 1, 0.01),
        how,
    )


def _examples(model: ElasticModel, inputs: Tensor, batch_size: int) -> GeneratedData:
    """Return one client with the example inputs, over and over, and labels drawn from what the model can answer."""
    net = model.cut(model.space.widths[0]).eval()
    with torch.no_grad():
        scores = net(inputs)
    if not isinstance(scores, Tensor) or scores.dim() < 2 or len(scores) != len(inputs):
        raise UserError(
            "model: its output must be scores (examples, ..., classes), to be trained as clients train it"
        )
    rows = torch.arange(max(batch_size, len(inputs))) % len(inputs)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(scores.shape[-1], (len(rows), *scores.shape[1:-1]), generator=generator)
    test = TestSet(inputs, labels[: len(inputs)], torch.full((len(inputs),), -1))
    return GeneratedData(1, lambda _: (inputs[rows], labels), test)
