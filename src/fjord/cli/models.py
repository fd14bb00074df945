"""`fjord inspect`, `fjord footprint`, `fjord cut`: what a model is at each width."""

from pathlib import Path
from typing import Annotated

import typer

from fjord.cli.tables import out, print_line, print_table, print_text
from fjord.core.width import parse_space
from fjord.elastic.elasticize import elasticize
from fjord.elastic.footprint import CONVENTION, measure_footprints
from fjord.elastic.model import ElasticModel
from fjord.elastic.storage import read_model_info, write_submodel
from fjord.elastic.summary import describe_plan
from fjord.models.catalog import PAPER_MODELS, CatalogEntry, find_model

MODEL_HELP = (
    f"{', '.join(PAPER_MODELS)}, or your own as module:function (inspect also takes a saved file)."
)
Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="Shape of a batch of numbers, such as 2x3x32x32; for others return (model, inputs).",
    ),
]
Widths = Annotated[str, typer.Option(help="uniform-5, or a list such as 1/4,1/2,1.")]
Freeze = Annotated[
    list[str] | None, typer.Option(help="Keep a layer whole, by name or pattern; may be repeated.")
]
RoundTo = Annotated[int, typer.Option(help="Round channel counts up to a multiple.")]


def build_elastic(
    name: str, shape: str | None, widths: str, freeze: list[str] | None, round_to: int
) -> tuple[ElasticModel, CatalogEntry]:
    """Return a model by name as an elastic one, with its example inputs."""
    entry = find_model(name, shape)
    model = elasticize(
        entry.model,
        entry.inputs,
        widths=parse_space(widths),
        freeze=[*entry.freeze, *(freeze or [])],
        round_to=round_to,
    )
    return model, entry


def inspect_model(
    model: Model,
    input: Input = None,
    widths: Widths = "uniform-5",
    freeze: Freeze = None,
    round_to: RoundTo = 1,
) -> None:
    """Explain a model or a saved file: its unit families, their layers, what is frozen and why."""
    if model.endswith(".safetensors") or Path(model).is_file():
        info = read_model_info(model)
        print_line(f"{model}: {info.model}, BatchNorm: {info.norms}")
        print_text(describe_plan(info.plan, info.space))
        return
    elastic, _ = build_elastic(model, input, widths, freeze, round_to)
    print_text(elastic.summary())


def print_footprint(
    model: Model,
    input: Input = None,
    widths: Widths = "uniform-5",
    freeze: Freeze = None,
    round_to: RoundTo = 1,
    batch: Annotated[int, typer.Option(help="Batch size for the training memory.")] = 1,
) -> None:
    """Print multiply-accumulates, parameters, bytes and training memory at each width."""
    elastic, entry = build_elastic(model, input, widths, freeze, round_to)
    rows = []
    for row in measure_footprints(elastic, entry.inputs, batch=batch):
        cells = [
            str(row.width),
            f"{row.macs:,}",
            f"{row.weights:,}",
            f"{row.parameters:,}",
            f"{row.bytes:,}",
            f"{row.training_bytes:,}",
        ]
        rows.append(cells)
    memory_column = f"training memory (batch {batch})"
    columns = ("width", "MACs", "weights", "parameters", "bytes", memory_column)
    print_table(columns, rows, title=model)
    out.print(CONVENTION)


def cut_file(
    file: Annotated[Path, typer.Argument(help="A file written by ElasticModel.save().")],
    width: Annotated[str, typer.Option(help="The width to cut, such as 2/5.")],
    output: Annotated[
        Path, typer.Option(help="Where to write the submodel's weights (safetensors).")
    ],
) -> None:
    """Cut the weights of one width out of a saved elastic model, reading nothing else."""
    tensors = write_submodel(file, width, output)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    print_line(f"{output}: {len(tensors)} tensors, {size:,} bytes")
