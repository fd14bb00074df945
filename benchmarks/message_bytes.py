"""What a client is sent and sends back in a round over Flower, in bytes, beside 4 bytes for each weight it holds."""

from fjord.core.width import Width, uniform_widths
from fjord.elastic.client_model import slice_index, take_tensors
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.engines.flower.codec import encode_task, encode_update
from fjord.engines.flower.engine import RunSpec
from fjord.engines.flower.grid import content_bytes
from fjord.models.catalog import PAPER_MODELS
from fjord.training.local import Assignment, ClientUpdate

RECIPES = {"resnet18": "cifar10", "cnn": "femnist", "rnn": "shakespeare"}


def sizes(model: ElasticModel, recipe: str, width: Width) -> tuple[int, int, int]:
    """Return the bytes of the weights, and of the messages to and from a client with this ceiling."""
    space = model.space.up_to(width)
    held = model.plan.leading_units(width)
    tensors = take_tensors(model, slice_index(model, held, space.widths))
    counts = dict.fromkeys(space.widths, 100)
    task = Assignment(3399, 499, 0.001, held, space, tensors)
    update = ClientUpdate(3399, tensors, 500, 1.2345678901234567, counts, counts, 10**13)
    down = encode_task(task, model.plan, RunSpec(recipe, ("seed=1",)).fields())
    return (
        4 * sum(t.numel() for t in tensors.values()),
        content_bytes(down),
        content_bytes(encode_update(task, update)),
    )


def main() -> None:
    print(
        "| model | width | weights, bytes | to the client | back | share of the full model |\n|---|---|---|---|---|---|"
    )
    for name, recipe in RECIPES.items():
        entry = PAPER_MODELS[name]()
        model = elasticize(
            entry.model, *entry.inputs, widths=uniform_widths(5), freeze=entry.freeze
        )
        full = sizes(model, recipe, Width(1))[0]
        for width in model.space.widths:
            weights, down, up = sizes(model, recipe, width)
            more = (f"{size:,} (+{size / weights - 1:.2%})" for size in (down, up))
            print(f"| {name} | {width} | {weights:,} | {' | '.join(more)} | 1/{full / down:.1f} |")


if __name__ == "__main__":
    main()
