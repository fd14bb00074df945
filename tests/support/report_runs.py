"""Made-up run folders for the report, and what a page says."""

import re
from html import unescape

from fjord.experiments.runs import RunFolder
from fjord.report import page

CONFIG = {
    "recipe": {"name": "toy", "set": []},
    "name": "toy",
    "method": "fjord",
    "widths": "WidthSpace(1/2: 1/2, 1: 1/2)",
    "data": {"function": "writers", "num_clients": 20},
    "num_rounds": 4,
    "lr": 0.1,
    "metric": "accuracy",
    "seed": 0,
    "workers": 2,
    "checkpoint_seconds": 5.0,
    "log": [],
}


SCORES = {"1/2": 0.5, "1": 0.75}


def tier_row(clients, down=100, up=50, macs=1000):
    return {"clients": clients, "examples": 8, "bytes_down": down, "bytes_up": up, "macs": macs}


def round_row(index, scores=None, **other):
    numbers = {
        w: {"loss": 1.0, "accuracy": s, "perplexity": 10 * s} for w, s in (scores or {}).items()
    }
    base = {
        "stage": 0,
        "target": "1",
        "round": index,
        "lr": 0.1,
        "loss": 4.0 - index,
        "examples": 8,
        "macs": 2000,
    }
    tiers = {"1/2": tier_row(2), "1": tier_row(1, 300, 300, 5000)}
    return (
        base
        | {"tiers": tiers, "shells": {"1/2": 3, "1": 2}, "dropped": {}, "scores": numbers}
        | other
    )


def four_rounds(scores):
    """Four rounds; scored after the second and, with the scores given, after the last."""
    return [
        round_row(0),
        round_row(1, {w: s / 2 for w, s in scores.items()}),
        round_row(2, loss=None),
        round_row(3, scores),
    ]


def with_clock(metrics, seconds):
    """The same rounds on a simulated clock."""
    return [r | {"simulated_seconds": seconds} for r in metrics]


def rising_clients(count=20):
    """Clients whose accuracies rise evenly, every other one with ceiling 1/2."""
    return {
        str(i): {
            "ceiling": "1/2" if i % 2 else "1",
            "width": "1/2",
            "accuracy": i / 100,
            "perplexity": 2.0 + i,
        }
        for i in range(count)
    }


def make_run(path, metrics=None, served=None, **config):
    folder = RunFolder.create(path, CONFIG | config)
    folder.append(four_rounds(SCORES) if metrics is None else metrics)
    if served is not False:
        folder.write_json("clients.json", served or rising_clients())
    return folder


def page_text(*folders):
    return page.write_page(list(folders), folders[0].path / "report.html").read_text()


def headline_cells(text):
    """The headline table: the cells of each row, by label."""
    body = text.split("<tbody>")[1].split("</tbody>")[0]
    return {
        unescape(re.search(r"<th scope='row'>(.*?)</th>", line)[1]): dict(
            re.findall(r'data-label="(.*?)".*?<span.*?>(.*?)</span>', line)
        )
        for line in body.split("</tr>")
        if line
    }


def table_under(text, head):
    """The cells of each row of the table under a heading, the name of its group first."""
    body = text.split(f"<h2>{head}</h2>")[1].split("</table>")[0]
    lines = [line for line in body.split("<tbody>")[1].split("</tr>") if "<td" in line]
    return [re.findall(r"<(?:th scope='row'|span.*?)>(.*?)</", line) for line in lines]
