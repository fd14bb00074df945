"""Models of timm and torchvision, cut at 1/2 with no user code: `python -m benchmarks.zoo [NAME...]`.

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

LIST = Path(__file__).with_name("zoo_models.txt")
PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"


@dataclass(frozen=True)
class Outcome:
    """How one model fared."""

    name: str
    seconds: float
    route: str = ""
    families: int = 0
    share: float = 0.0
    failure: str = ""


def declare_torchvision_operators() -> None:
    """Make torchvision's Python part importable beside the CPU build of torch, whose compiled part does not load."""
    if "torchvision" not in sys.modules:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        declare_torchvision_operators.library = library  # type: ignore[attr-defined]  # lives as long as the process


Made = tuple[nn.Module, tuple[Any, ...]]


def build(name: str, **options: Any) -> Made:
    """Return an untrained model and an example of its inputs; `options` are those of its own library."""
    declare_torchvision_operators()
    torch.manual_seed(0)
    if name.startswith("tv:"):
        import torchvision

        return torchvision.models.get_model(name[3:], weights=None, **options), (
            torch.randn(2, 3, 224, 224),
        )
    import timm

    model = timm.create_model(name, pretrained=False, **options)
    return model, (torch.randn(2, *model.default_cfg["input_size"]),)


def outcome(name: str, make: Callable[[str], Made] = build) -> Outcome:
    """Make one model elastic, cut it in half, and run the half."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, inputs = make(name)
    start = time.perf_counter()
    try:
        elastic = fjord.elasticize(model, inputs, widths=fjord.WidthSpace.of(["1/2", "1"]))
        seconds = time.perf_counter() - start
        half = elastic.cut("1/2")
        for mode in (True, False):
            half.train(mode)(torch.cat([inputs[0], inputs[0][:1]]))
    except Exception as error:  # any failure is a row of the table
        return Outcome(
            name, time.perf_counter() - start, failure=f"{type(error).__name__}: {error}"
        )
    share = sum(p.numel() for p in half.parameters()) / sum(p.numel() for p in model.parameters())
    return Outcome(name, seconds, elastic.blueprint.route, len(elastic.plan.families), share)


def page(outcomes: list[Outcome]) -> str:
    """Return the results as a page."""
    good = [o for o in outcomes if not o.failure]
    env = describe_environment()
    lines = [
        "# Models tried",
        "",
        f"{len(good)} of {len(outcomes)} model families of timm and torchvision become elastic, "
        "are proved and are cut at 1/2, with no user code "
        f"(`make zoo`, commit {env['commit']}, torch {env['torch']}). Each submodel also runs in both "
        "modes on a batch of another size. `weights` is the share of parameters left at 1/2. Seconds "
        "are for one thread while another model runs beside it.",
        "",
        "| model | built from | families | weights | seconds |",
        "|---|---|---|---|---|",
        *(
            f"| {o.name} | {o.route} | {o.families} | {o.share:.2f} | {o.seconds:.1f} |"
            for o in good
        ),
        "",
        "## Refused",
        "",
        *(f"- **{o.name}**: {o.failure.split(' What to do:')[0]}" for o in outcomes if o.failure),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    names = sys.argv[1:] or LIST.read_text().split()
    found = []
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=8) as pool:
        for result in pool.imap(outcome, names):
            print(result, flush=True)
            found.append(result)
    if not sys.argv[1:]:
        PAGE.write_text(page(found))
    print(f"{sum(not o.failure for o in found)} of {len(found)}")


if __name__ == "__main__":
    main()
