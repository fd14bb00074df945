"""Which figures the page has: for each its title, its series and the sentence that says how to read it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fjord.core.width import Width
from fjord.report import cost_to_score as reach
from fjord.report import numbers
from fjord.report.figures import (
    AxesLabels,
    CurveStyle,
    PlotSeries,
    draw_bars,
    draw_lines,
    group_styles,
    width_styles,
)
from fjord.report.groups import ReportRun, RunGroup

Values = Callable[[ReportRun], Mapping[Any, float]]
STARVING = (
    "A shell is the units between one width and the next smaller one. It starves when fewer than one client trains it "
    "per round on average, or when nobody does in more than half of the rounds."
)


@dataclass(frozen=True)
class ReportCard:
    """One figure of the page."""

    name: str
    title: str
    svg: str
    caption: str
    series: tuple[PlotSeries, ...]

    @property
    def legend(self) -> list[tuple[str, CurveStyle]]:
        """What the colours mean."""
        return [(one.label, one.style) for one in self.series]


@dataclass(frozen=True)
class CardDeck:
    """Makes the figures of some groups; one that has nothing to show is left out."""

    groups: Sequence[RunGroup]
    metric: str

    def cards(self) -> Iterator[ReportCard]:
        """Yield the figures in the order of the page."""
        makers = (self.by_width, self.by_tier, self.worst_decile, self.convergence, self.loss)
        for make in (*makers, self.spending, self.traffic, self.compute, self.shells):
            yield from make()

    def by_width(self) -> Iterator[ReportCard]:
        """Yield the last scores against width."""
        series = self._series(lambda run: numbers.final_scores(run, self.metric))
        if series:
            ticks = {width: str(width) for one in series for width in one.points}
            svg = draw_lines("by-width", series, self._axes("width of the submodel"), ticks)
            caption = f"Last test {self.metric} at each width{self._spread('bars')}."
            yield ReportCard("by-width", f"{self._metric} against width", svg, caption, series)

    def by_tier(self) -> Iterator[ReportCard]:
        """Yield the scores of the clients of each ceiling."""
        missing = [self._bare(group) for group in self.groups]
        series = self._client_series(
            lambda run: numbers.tier_scores(run, self.metric), absent=missing
        )
        if series:
            places = _fractions(width for one in series for width in (*one.points, *one.absent))
            caption = f"{self._mean} over clients, each with the widest model it can carry{self._spread('bars')}."
            if any(missing):
                caption += " A cross: a tier whose clients have no model they can carry."
            svg = draw_bars(
                "by-tier", series, self._axes("widest submodel the clients can carry"), places
            )
            yield ReportCard("by-tier", f"{self._metric} per tier", svg, caption, series)

    def _bare(self, group: RunGroup) -> frozenset[Width]:
        """Return the ceilings at which no client has a model."""
        served = {width for run in group.runs for width in numbers.tier_scores(run, self.metric)}
        bare = {c for run in group.runs for c in numbers.without_model(run) if c != "unknown"}
        return frozenset(map(Width, bare)) - served

    def worst_decile(self) -> Iterator[ReportCard]:
        """Yield the mean over the worst tenth of clients beside the mean over all."""
        series = self._client_series(lambda run: numbers.client_means(run, self.metric))
        if series:
            counted = [
                sum(c.get("width") is not None for c in r.clients.values())
                for g in self.groups
                for r in g.runs
            ]
            tenths = " or ".join(f"{math.ceil(n / 10)} of {n}" for n in sorted(set(counted)) if n)
            caption = f"Worst decile: the {self._mean.lower()} over the 10% of clients with the worst {self.metric} "
            caption += f"({tenths}){self._spread('bars')}."
            everyone = "all with a model" if any(map(_left_out, self.groups)) else "all clients"
            places = {"worst": "worst decile of clients", "all": everyone}
            svg = draw_bars("worst-decile", series, self._axes(""), places)
            yield ReportCard("worst-decile", "Worst decile of clients", svg, caption, series)

    def convergence(self) -> Iterator[ReportCard]:
        """Yield the scores against rounds: all widths of one group, or all groups at each width."""
        widths = self._widths(self.groups)
        if len(self.groups) == 1:
            parts = [(f"width {w}", self._curves(self.groups[0], w)) for w in widths]
            styles = width_styles(len(widths))
            yield from self._converging("convergence", "Convergence", _kept(parts, styles))
            return
        for width in widths:
            parts = [(group.name, self._curves(group, width)) for group in self.groups]
            name = f"convergence-{str(width).replace('/', 'of')}"
            series = _kept(parts, group_styles(len(parts)))
            yield from self._converging(name, f"Convergence at width {width}", series)

    def _curves(self, group: RunGroup, width: Width) -> dict[Any, numbers.SeedStat]:
        return numbers.over_runs(group, lambda run: numbers.score_curve(run, self.metric, width))

    def _converging(
        self, name: str, title: str, series: tuple[PlotSeries, ...]
    ) -> Iterator[ReportCard]:
        if series:
            caption = f"Test {self.metric} against rounds{self._spread('band')}."
            yield ReportCard(
                name, title, draw_lines(name, series, self._axes("rounds")), caption, series
            )

    def loss(self) -> Iterator[ReportCard]:
        """Yield the training loss: of each model of one group, or of the widest model of all groups."""
        window = max(numbers.loss_window(run) for group in self.groups for run in group.runs)
        caption = f"Mean over the last {window} rounds{self._spread('band')}." if window > 1 else ""
        if len(self.groups) == 1:
            found = sorted(
                {target for run in self.groups[0].runs for target in numbers.model_widths(run)}
            )
            parts = [(f"model of width {t}", self._losses(self.groups[0], t)) for t in found]
            if len(parts) == 1:
                parts = [(self.groups[0].name, parts[0][1])]
            series = _kept(parts, width_styles(len(parts)) if len(parts) > 1 else group_styles(1))
        else:
            last = [
                max((t for run in g.runs for t in numbers.model_widths(run)), default=Width(1))
                for g in self.groups
            ]
            parts = [(g.name, self._losses(g, t)) for g, t in zip(self.groups, last, strict=True)]
            series = _kept(parts, group_styles(len(parts)))
            caption += " Where a method trains several models: the widest. Losses of different methods may be of "
            caption += "different kinds."
        if series:
            svg = draw_lines(
                "loss",
                series,
                AxesLabels("rounds", "training loss", "{:.3g}".format, may_be_log=True),
            )
            yield ReportCard("loss", "Training loss, smoothed", svg, caption.strip(), series)

    def _losses(self, group: RunGroup, target: Width) -> dict[Any, numbers.SeedStat]:
        return numbers.over_runs(group, lambda run: numbers.loss_curve(run, target))

    def spending(self) -> Iterator[ReportCard]:
        """Yield the scores against simulated time and against bytes: all widths of one group, or all groups."""
        for kind in reach.COST_KINDS:
            series = (
                self._spent_by_width(kind) if len(self.groups) == 1 else self._spent_by_group(kind)
            )
            if series:
                yield self._spending(kind, series)

    def _spent_by_width(self, kind: str) -> tuple[PlotSeries, ...]:
        widths = self._widths(self.groups)
        parts = [
            (f"width {w}", reach.score_by_cost(self.groups[0], self.metric, w, kind))
            for w in widths
        ]
        return _kept(parts, width_styles(len(parts)))

    def _spent_by_group(self, kind: str) -> tuple[PlotSeries, ...]:
        """Return one line for each group, that of the widest model it scored: not all have the same widths."""
        parts: list[tuple[str, dict[float, numbers.SeedStat]]] = []
        for group in self.groups:
            widest = max(self._widths([group]), default=None)
            points = {} if widest is None else reach.score_by_cost(group, self.metric, widest, kind)
            parts.append((f"{group.name}, width {widest}", points))
        return _kept(parts, group_styles(len(parts)))

    def _widths(self, groups: Sequence[RunGroup]) -> list[Width]:
        return sorted(
            {w for g in groups for r in g.runs for w in numbers.final_scores(r, self.metric)}
        )

    def _spending(self, kind: str, series: tuple[PlotSeries, ...]) -> ReportCard:
        scale, unit = reach.cost_unit(max(x for one in series for x in one.points), kind)
        scaled = tuple(
            replace(one, points={x / scale: y for x, y in one.points.items()}) for one in series
        )
        label = (
            f"simulated time ({unit})" if kind == "time" else f"sent to clients and back ({unit})"
        )
        svg = draw_lines(f"over-{kind}", scaled, replace(self._axes(label), whole=False))
        what = (
            "simulated time, all clients at once"
            if kind == "time"
            else "bytes sent to clients and back"
        )
        caption = f"Test {self.metric} against {what}, since the run began{self._spread('band')}."
        caption += " Of each: the widest model it scored." if len(self.groups) > 1 else ""
        staged = [group.name for group in self.groups if group.models > 1]
        if staged:
            caption += f" Models that are trained one after the other add up: {', '.join(staged)}."
        return ReportCard(f"over-{kind}", f"{self._metric} over {kind}", svg, caption, scaled)

    def traffic(self) -> Iterator[ReportCard]:
        """Yield the bytes sent to and from a client."""
        down = [
            numbers.over_runs(group, lambda run: numbers.client_costs(run, "bytes_down"))
            for group in self.groups
        ]
        inner = [{width: stat.mean for width, stat in part.items()} for part in down]
        series = self._series(
            lambda run: numbers.client_costs(run, "bytes_down", "bytes_up"), inner=inner
        )
        caption = "Per client and round; full colour: to the client, pale: back from it"
        yield from self._cost(
            "bytes",
            "Bytes per tier",
            caption,
            AxesLabels("", "bytes per client and round", _bytes),
            series,
        )

    def compute(self) -> Iterator[ReportCard]:
        """Yield the multiply-accumulates of a client."""
        series = self._series(lambda run: numbers.client_costs(run, "macs"))
        caption = "Multiply-accumulates of local training, per client and round"
        yield from self._cost(
            "macs",
            "MACs per tier",
            caption,
            AxesLabels("", "MACs per client and round", _si),
            series,
        )

    def _cost(
        self, name: str, title: str, caption: str, axes: AxesLabels, series: tuple[PlotSeries, ...]
    ) -> Iterator[ReportCard]:
        if series:
            axes = AxesLabels("widest submodel the clients can carry", axes.y, axes.shown)
            places = _fractions(width for one in series for width in one.points)
            caption += f"{self._spread('bars')}."
            staged = [
                f"{group.name} ({group.rounds} rounds)" for group in self.groups if group.models > 1
            ]
            if staged:
                caption += f" Spent for each of several models: {', '.join(staged)}."
            yield ReportCard(name, title, draw_bars(name, series, axes, places), caption, series)

    def shells(self) -> Iterator[ReportCard]:
        """Yield how many clients trained each shell."""
        hungry = [
            frozenset(s.width for s in numbers.shell_rows(group.runs) if s.starving)
            for group in self.groups
        ]
        series = self._series(numbers.shell_means, flagged=hungry)
        if series:
            axes = AxesLabels(
                "shell, named by its outer width", "clients per round", "{:.3g}".format, threshold=1
            )
            places = _fractions(width for one in series for width in one.points)
            caption = f"Mean number of clients in a round that trained each shell{self._spread('bars')}. Dashed: one "
            caption += "client. " + ("Hatched: starving. " if any(hungry) else "") + STARVING
            yield ReportCard(
                "shells",
                "Who trained which shell",
                draw_bars("shells", series, axes, places),
                caption,
                series,
            )

    def _series(self, values: Values, **marks: Sequence[Any]) -> tuple[PlotSeries, ...]:
        parts = [(group.name, numbers.over_runs(group, values)) for group in self.groups]
        return _kept(parts, group_styles(len(parts)), **marks)

    def _client_series(self, values: Values, **marks: Sequence[Any]) -> tuple[PlotSeries, ...]:
        """Return series whose labels say how many clients are not in them: a mean over the rest flatters a method."""
        parts = [(f"{g.name}{_left_out(g)}", numbers.over_runs(g, values)) for g in self.groups]
        return _kept(parts, group_styles(len(parts)), **marks)

    @property
    def _metric(self) -> str:
        return self.metric.capitalize()

    @property
    def _mean(self) -> str:
        return "Mean" if self.metric == "accuracy" else "Geometric mean"

    def _axes(self, x: str) -> AxesLabels:
        if self.metric == "accuracy":
            return AxesLabels(x, "accuracy", lambda value: f"{100 * value:.3g}%")
        return AxesLabels(x, f"{self.metric} (lower is better)", _si, may_be_log=True)

    def _spread(self, mark: str) -> str:
        if all(len(group.runs) == 1 for group in self.groups):
            return ""
        return f"; mean over seeds, {mark}: ± one standard deviation"


def _left_out(group: RunGroup) -> str:
    stranded = numbers.seed_stat(
        sum(numbers.without_model(run).values()) for run in group.runs if run.clients
    )
    clients = numbers.seed_stat(len(run.clients) for run in group.runs if run.clients)
    if not stranded or not clients or not stranded.mean:
        return ""
    return f": {stranded.mean:.4g} of {clients.mean:.4g} clients have no model they can carry"


def _kept(
    parts: Sequence[tuple[str, Any]], styles: Sequence[CurveStyle], **marks: Sequence[Any]
) -> tuple[PlotSeries, ...]:
    """Return the series that have something to show, each with its own marks."""
    made = [
        PlotSeries(label, styles[i], points, **{mark: values[i] for mark, values in marks.items()})
        for i, (label, points) in enumerate(parts)
    ]
    return (
        tuple(one for one in made if one.points or one.absent)
        if any(one.points for one in made)
        else ()
    )


def _fractions(widths: Iterator[Width]) -> dict[Any, str]:
    return {width: str(width) for width in sorted(set(widths))}


def _si(value: float) -> str:
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if limit <= abs(value) < 1000 * limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def _bytes(value: float) -> str:
    return f"{_si(value)}B" if abs(value) >= 1000 else f"{value:.3g} B"
