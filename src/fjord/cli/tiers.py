"""`fjord tiers`: a fleet's profiles, or a table of its devices, as tiers with ceilings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fjord.cli.profile import KD_NAMES, Bandwidth, Deadline, Examples, Memory
from fjord.cli.tables import out, print_line, print_table
from fjord.core.errors import UserError
from fjord.devices.budget import Budget
from fjord.devices.fleet_table import FleetDevice, read_fleet_table
from fjord.devices.grouping import DeviceGrouping, group_devices, write_ceilings
from fjord.devices.profile import BudgetVerdict, DeviceProfile, read_profile

MOST_EXCLUDED = 5
"""How many of the devices that cannot take part are listed."""


def group_fleet(
    files: Annotated[
        list[Path], typer.Argument(help="Profiles (fjord profile --json), or tables (.csv, .json).")
    ],
    tiers: Annotated[int, typer.Option(help="How many ceilings, at most.")] = 5,
    deadline: Deadline = None,
    memory: Memory = None,
    bandwidth: Bandwidth = None,
    examples: Examples = None,
    kd: Annotated[
        bool | None, typer.Option("--kd/--no-kd", help="Reckon with or without distillation.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="The profile that a table's speeds refer to.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Give so many clients a ceiling (default: one a device).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write ceilings that `--set tiers=FILE` reads.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw who can run what, as PNG.")] = None,
) -> None:
    """Group a fleet into tiers under a budget; say how many devices each ceiling leaves out."""
    limits = {"deadline": deadline, "memory": memory, "bandwidth": bandwidth, "examples": examples}
    budget = Budget.parse(limits)
    if clients is not None and clients < 1:
        raise UserError("must be at least 1", field="clients", value=clients)
    reference = None
    if profile is not None:
        reference = read_profile(profile)
    devices = read_fleet_table(files, reference)
    kind = _select_kind(devices[0].profile, kd)
    grouping = group_devices(devices, budget, tiers, kind)
    fleet = _GroupedFleet(devices, grouping, kind, budget)
    fleet.print_tiers()
    fleet.print_excluded()
    if output is not None:
        _write_clients(output, grouping, clients)
    if plot is not None:
        fleet.draw_plot(plot)
        print_line(f"Picture: {plot}")


def _select_kind(profile: DeviceProfile, kd: bool | None) -> bool | None:
    """Return with or without distillation: as asked, or the profile's first, the recipe's own."""
    if kd is None:
        return profile.kd_kinds[0]
    if kd not in profile.kd_kinds:
        option = "--no-kd"
        if kd:
            option = "--kd"
        raise UserError(f"{option}: the profiles were not measured {KD_NAMES[kd]}")
    return kd


def _write_clients(output: Path, grouping: DeviceGrouping, clients: int | None) -> None:
    ceilings = grouping.client_ceilings(clients)
    write_ceilings(output, ceilings)
    dealt = ""
    if clients is not None:
        able = len(grouping.client_ceilings())
        dealt = f", dealt from the {able} devices that can take part"
    print_line(f"Ceilings of {len(ceilings)} clients{dealt}: {output}")


@dataclass(frozen=True)
class _GroupedFleet:
    """The devices of a fleet, their tiers, and the budget that led to them."""

    devices: list[FleetDevice]
    grouping: DeviceGrouping
    kd: bool | None
    budget: Budget

    @property
    def title(self) -> str:
        return self.devices[0].profile.model

    def print_tiers(self) -> None:
        grouping = self.grouping
        total = sum(grouping.counts.values())
        rows = []
        for width in grouping.widths:
            excluded = grouping.count_excluded(width)
            in_tier = "-"
            if width in grouping.tiers:
                in_tier = str(grouping.count_in_tier(width))
            share = f"{excluded} ({excluded / total:.0%})"
            rows.append([str(width), str(total - excluded), share, in_tier])
        columns = ("ceiling", "can carry it", "left out by it", "in this tier")
        title = f"{total} devices, {self.title} {KD_NAMES[self.kd]}"
        print_table(columns, rows, title=title)

    def print_excluded(self) -> None:
        """Name the devices that cannot take part, and the limits that rule them out."""
        widest = self.grouping.widest_fits
        excluded = [device for device in self.devices if widest[device.name] is None]
        smallest = self.grouping.widths[0]
        for device in excluded[:MOST_EXCLUDED]:
            verdict = device.check_budget(self.budget, self.kd)[0]
            limits = " and ".join(verdict.limits) or "a failed try"
            print_line(f"{device.name} cannot take part: {limits} rules out even {smallest}")
        more = len(excluded) - MOST_EXCLUDED
        if more > 0:
            out.print(f"... and {more} more kinds of devices cannot take part")

    def draw_plot(self, path: Path) -> None:
        """Draw which device can run which width."""
        from fjord.report.fleet import DeviceRow, draw_fleet

        rows = []
        for device in self.devices:
            verdicts = device.check_budget(self.budget, self.kd)
            words = tuple(_verdict_word(verdict) for verdict in verdicts)
            ceiling = self.grouping.device_ceiling(device.name)
            rows.append(DeviceRow(device.name, device.count, words, ceiling))
        widths = self.grouping.widths
        excluded = [self.grouping.count_excluded(width) for width in widths]
        title = f"{self.title}, {KD_NAMES[self.kd]}"
        draw_fleet(path, widths, rows, excluded, self.grouping.tiers, title)


def _verdict_word(verdict: BudgetVerdict) -> str:
    """Return why a width does not fit, in the words of the plot."""
    if verdict.fits:
        return "yes"
    if not verdict.limits:
        return "failed"
    if len(verdict.limits) == 2:
        return "both"
    return verdict.limits[0]
