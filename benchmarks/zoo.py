"""Foreign models, cut at 1/2 with no user code: `python -m benchmarks.zoo [NAME...]`.

Each model of `zoo_models.txt` (timm, or torchvision with the prefix "tv:") is made elastic, which
proves the plan, cut at 1/2, and run in both modes on a batch of another size. Without names, the
benchmark writes `docs/zoo.md`.
"""

import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fjord
from fjord.experiments.runs import describe_environment

MODEL_LIST = Path(__file__).with_name("zoo_models.txt")
ZOO_PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
TORCHVISION_PREFIX = "tv:"
NUM_PROCESSES = 2
INTRODUCTION = (
    "{good} of {all} model families of timm and torchvision become elastic, are proved and are cut "
    "at 1/2, with no user code (`make zoo`, commit {commit}, torch {torch}). Each submodel also "
    "runs in both modes on a batch of another size. `weights` is the share of parameters left at "
    "1/2. Seconds are for one thread while another model runs beside it."
)
BuiltModel = tuple[nn.Module, tuple[Any, ...]]
"""A model and its example inputs."""


@dataclass(frozen=True)
class ZooResult:
    """Whether one model could be cut, and what it took."""

    name: str
    seconds: float
    route: str = ""
    families: int = 0
    share: float = 0.0
    failure: str = ""


def declare_torchvision_operators() -> None:
    """Make torchvision's Python part importable beside the CPU build of torch.

    Its compiled part, which declares these operators, does not load there.
    """
    if "torchvision" not in sys.modules:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        # Kept as long as the process: the declarations go with the object.
        declare_torchvision_operators.library = library  # type: ignore[attr-defined]


def build_model(name: str, **options: Any) -> BuiltModel:
    """Return an untrained model and its example inputs; `options` are those of its library."""
    declare_torchvision_operators()
    torch.manual_seed(0)
    if name.startswith(TORCHVISION_PREFIX):
        import torchvision

        bare_name = name.removeprefix(TORCHVISION_PREFIX)
        model = torchvision.models.get_model(bare_name, weights=None, **options)
        return model, (torch.randn(2, 3, 224, 224),)
    import timm

    model = timm.create_model(name, pretrained=False, **options)
    input_size = model.default_cfg["input_size"]
    return model, (torch.randn(2, *input_size),)


def try_model(name: str, build: Callable[[str], BuiltModel] = build_model) -> ZooResult:
    """Make one model elastic, cut it in half, and run the half."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, inputs = build(name)
    start = time.perf_counter()
    try:
        elastic = fjord.elasticize(model, inputs, widths=fjord.WidthSpace.of(["1/2", "1"]))
        seconds = time.perf_counter() - start
        half = elastic.cut("1/2")
        three_examples = torch.cat([inputs[0], inputs[0][:1]])
        for mode in (True, False):
            half.train(mode)(three_examples)
    except Exception as error:  # any failure is a row of the table
        failure = f"{type(error).__name__}: {error}"
        return ZooResult(name, time.perf_counter() - start, failure=failure)
    share = count_parameters(half) / count_parameters(model)
    return ZooResult(name, seconds, elastic.blueprint.route, len(elastic.plan.families), share)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def render_page(results: list[ZooResult]) -> str:
    """Return the results as a page."""
    rows = []
    refused = []
    for result in results:
        if result.failure:
            reason = result.failure.split(" What to do:")[0]
            refused.append(f"- **{result.name}**: {reason}")
        else:
            cells = f"{result.families} | {result.share:.2f} | {result.seconds:.1f}"
            rows.append(f"| {result.name} | {result.route} | {cells} |")
    environment = describe_environment()
    introduction = INTRODUCTION.format(
        good=len(rows),
        all=len(results),
        commit=environment["commit"],
        torch=environment["torch"],
    )
    lines = ["# Models tried", "", introduction, ""]
    lines += ["| model | built from | families | weights | seconds |", "|---|---|---|---|---|"]
    lines += rows
    lines += ["", "## Refused", ""]
    lines += refused
    return "\n".join(lines) + "\n"


def main() -> None:
    names = sys.argv[1:] or MODEL_LIST.read_text().split()
    results = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(NUM_PROCESSES, maxtasksperchild=8) as pool:
        for result in pool.imap(try_model, names):
            print(result, flush=True)
            results.append(result)
    if not sys.argv[1:]:
        ZOO_PAGE.write_text(render_page(results))
    good = sum(not result.failure for result in results)
    print(f"{good} of {len(results)}")


if __name__ == "__main__":
    main()
