"""Made-up runs of the paper's curves, with scores that a test chooses."""

from fjord.experiments.runs import RunFolder
from reproduction.curves import CURVES, TASKS
from reproduction.measured import measure_curve


def fake_run(
    runs, task, curve, seed, points, metric="accuracy", macs=10, losses=(2.0, 1.0), **config
):
    """A finished run of four rounds with these scores, tested after the second at half of them."""
    settings = {
        "name": task,
        "method": curve,
        "metric": metric,
        "num_rounds": 4,
        "seed": seed,
        "targets": ["1"],
    }
    folder = RunFolder.create(runs / task / curve / str(seed), settings | config)

    def scores(share, loss):
        return {
            w: {"loss": loss, "accuracy": share * p / 100, "perplexity": p / share}
            for w, p in points.items()
        }

    tier = {"clients": 1, "examples": 8, "bytes_down": 3, "bytes_up": 2, "macs": macs}
    base = {
        "stage": 0,
        "target": "1",
        "lr": 0.1,
        "loss": 1.0,
        "examples": 8,
        "macs": macs,
        "shells": {},
        "dropped": {},
    }
    tested = {1: scores(0.5, losses[0]), 3: scores(1, losses[1])}
    folder.append(
        {**base, "round": i, "tiers": {"1": tier}, "scores": tested.get(i, {})} for i in range(4)
    )
    folder.write_json("clients.json", {})
    return folder


def read_curves(runs, task, *curves):
    return {name: measure_curve(TASKS[task], CURVES[name], runs)[0] for name in curves}


def by_width(*points):
    return dict(zip(("1/5", "2/5", "3/5", "4/5", "1"), points, strict=True))


def claim_named(name):
    from reproduction.paper_claims import CLAIMS

    (claim,) = [claim for claim in CLAIMS if claim.name == name]
    return claim


def claims_of(*names):
    from reproduction.paper_claims import CLAIMS

    return [claim for claim in CLAIMS if claim.figure in names]
