"""The command line: `fjord run`, `fjord list`, `fjord inspect`, `fjord footprint`, `fjord cut`."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.elastic.storage import read_info, write_cut
from fjord.elastic.summary import describe_plan
from fjord.footprint import CONVENTION, footprints
from fjord.models.catalog import PAPER, Entry, find_model
from fjord.recipes import theorem1
from fjord.report import theorem1 as figure
from fjord.runs import RunFolder
from fjord.width import WidthSpace, parse_width, uniform

app = typer.Typer(help="Ordered Dropout for any PyTorch model.", no_args_is_help=True, add_completion=False)
out = Console(highlight=False)

Model = Annotated[
    str, typer.Argument(help=f"{', '.join(PAPER)}, or your own as module:function (inspect also takes a saved file).")
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input", help="Shape of a batch of numbers, such as 2x3x32x32; other inputs: return (model, inputs)."
    ),
]
Widths = Annotated[str, typer.Option(help="uniform-5, or a list such as 1/4,1/2,1.")]
Freeze = Annotated[list[str] | None, typer.Option(help="Keep a layer whole, by name or pattern; may be repeated.")]
RoundTo = Annotated[int, typer.Option(help="Round channel counts up to a multiple.")]


def main() -> None:
    """Run the command line; what a user got wrong is one line, not a traceback."""
    try:
        app()
    except ValueError as error:
        Console(stderr=True, highlight=False).print(f"fjord: {error}", markup=False, soft_wrap=True)
        sys.exit(2)


def _space(text: str) -> WidthSpace:
    name, _, count = text.partition("-")
    if name == "uniform" and count.isdigit():
        return uniform(int(count))
    return WidthSpace.of([parse_width(part) for part in text.split(",")])


def _elastic(
    name: str, shape: str | None, widths: str, freeze: list[str] | None, round_to: int
) -> tuple[ElasticModel, Entry]:
    entry = find_model(name, shape)
    whole = [*entry.freeze, *(freeze or [])]
    return elasticize(entry.model, entry.inputs, widths=_space(widths), freeze=whole, round_to=round_to), entry


@app.command()
def inspect(
    model: Model, input: Input = None, widths: Widths = "uniform-5", freeze: Freeze = None, round_to: RoundTo = 1
) -> None:
    """Explain a model, or a saved file: its unit families, their layers, and what is frozen and why."""
    if model.endswith(".safetensors") or Path(model).is_file():
        info = read_info(model)
        out.print(f"{model}: {info.model}, BatchNorm: {info.norms}", markup=False)
        out.print(describe_plan(info.plan, info.space), markup=False, end="", soft_wrap=True)
        return
    elastic, _ = _elastic(model, input, widths, freeze, round_to)
    out.print(elastic.summary(), markup=False, end="", soft_wrap=True)


@app.command()
def footprint(
    model: Model,
    input: Input = None,
    widths: Widths = "uniform-5",
    freeze: Freeze = None,
    round_to: RoundTo = 1,
    batch: Annotated[int, typer.Option(help="Batch size for the training memory.")] = 1,
) -> None:
    """Print multiply-accumulates, parameters, bytes and training memory at each width."""
    elastic, entry = _elastic(model, input, widths, freeze, round_to)
    table = Table("width", "MACs", "weights", "parameters", "bytes", f"training memory (batch {batch})", title=model)
    for row in footprints(elastic, entry.inputs, batch=batch):
        table.add_row(
            str(row.width), *(f"{n:,}" for n in (row.macs, row.weights, row.parameters, row.bytes, row.training_bytes))
        )
    out.print(table)
    out.print(CONVENTION)


@app.command()
def cut(
    file: Annotated[Path, typer.Argument(help="A file written by ElasticModel.save().")],
    width: Annotated[str, typer.Option(help="The width to cut, such as 2/5.")],
    output: Annotated[Path, typer.Option(help="Where to write the submodel's weights (safetensors).")],
) -> None:
    """Cut the weights of one width out of a saved elastic model, reading nothing else."""
    tensors = write_cut(file, width, output)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    out.print(f"{output}: {len(tensors)} tensors, {size:,} bytes", markup=False)


RECIPES: dict[str, Callable[[], theorem1.Theorem1]] = {
    "theorem1.paper": theorem1.paper,
    "theorem1.decaying": theorem1.decaying,
}


@app.command(name="list")
def list_recipes() -> None:
    """List the recipes that can be run."""
    table = Table("recipe", "what it is")
    table.add_row("theorem1", "Ordered Dropout recovers the SVD: both settings below, with a figure")
    for name, recipe in RECIPES.items():
        table.add_row(name, (recipe.__doc__ or "").splitlines()[0].removeprefix("Return "))
    out.print(table)


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe of `fjord list`.")] = "theorem1",
    seed: Annotated[int, typer.Option(help="Seed of every random decision.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
) -> None:
    """Run a recipe into a run folder; print its table and the path of its figure."""
    names = [name for name in RECIPES if name == recipe or name.startswith(f"{recipe}.")]
    if not names:
        raise ValueError(f"recipe {recipe!r} is unknown; known: theorem1, {', '.join(RECIPES)}")
    done: list[RunFolder] = []
    for name in names:
        with out.status(f"{name} ..."):
            done.append(theorem1.run(replace(RECIPES[name](), seed=seed), output / name / str(seed)))
    table = Table("rank k", *names, title="Relative distance to the best rank-k approximation")
    for k, row in enumerate(zip(*(r.metrics()[-1]["distance"] for r in done), strict=True)):
        table.add_row(str(k + 1), *(f"{value:.2%}" for value in row))
    out.print(table)
    picture = figure.draw(done, output / f"{recipe}-seed{seed}.png")
    out.print(f"Figure: {picture}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
