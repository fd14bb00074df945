"""The bytes of a client's messages over Flower, beside 4 bytes for each weight it holds."""

from dataclasses import dataclass

from fjord.core.width import Width, uniform_widths
from fjord.elastic.client_model import slice_index, take_tensors
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.engines.flower.codec import content_bytes, encode_task, encode_update
from fjord.engines.flower.run_spec import RunSpec
from fjord.models.catalog import PAPER_MODELS
from fjord.training.assignment import Assignment, ClientUpdate

RECIPES = {"resnet18": "cifar10", "cnn": "femnist", "rnn": "shakespeare"}
HEADINGS = "| model | width | weights, bytes | to the client | back | share of the full model |"


@dataclass(frozen=True)
class MessageSizes:
    """The bytes of a client's weights, and of the messages to it and from it."""

    weights: int
    down: int
    up: int


def message_sizes(
    model: ElasticModel,
    recipe: str,
    width: Width,
) -> MessageSizes:
    """Return the sizes for a client with this ceiling."""
    space = model.space.up_to(width)
    units = model.plan.leading_units(width)
    tensors = take_tensors(model, slice_index(model, units, space.widths))
    counts = dict.fromkeys(space.widths, 100)
    task = Assignment(3399, 499, width, 0.001, units, space, tensors)
    update = ClientUpdate(
        3399,
        tensors,
        500,
        1.2345678901234567,
        counts,
        counts,
        10**13,
    )
    spec = RunSpec(recipe, ("seed=1",))
    return MessageSizes(
        weights=4 * sum(tensor.numel() for tensor in tensors.values()),
        down=content_bytes(encode_task(task, model.plan, spec.fields())),
        up=content_bytes(encode_update(task, update)),
    )


def size_text(size: int, weights: int) -> str:
    return f"{size:,} (+{size / weights - 1:.2%})"


def main() -> None:
    print(f"{HEADINGS}\n|---|---|---|---|---|---|")
    for name, recipe in RECIPES.items():
        entry = PAPER_MODELS[name]()
        model = elasticize(
            entry.model,
            *entry.inputs,
            widths=uniform_widths(5),
            freeze=entry.freeze,
        )
        full = message_sizes(model, recipe, Width(1)).weights
        for width in model.space.widths:
            sizes = message_sizes(model, recipe, width)
            weights = sizes.weights
            down = size_text(sizes.down, weights)
            up = size_text(sizes.up, weights)
            share = f"1/{full / sizes.down:.1f}"
            print(f"| {name} | {width} | {weights:,} | {down} | {up} | {share} |")


if __name__ == "__main__":
    main()
