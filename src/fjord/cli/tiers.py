"""`fjord tiers`: a fleet's profiles, or a table of its devices, as tiers with ceilings."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fjord.cli.profile import KINDS, Bandwidth, Deadline, Examples, Memory
from fjord.core.errors import UserError
from fjord.devices.budget import Budget
from fjord.devices.fleet_table import FleetDevice, read_fleet_table
from fjord.devices.grouping import DeviceGrouping, group_devices, write_ceilings
from fjord.devices.profile import BudgetVerdict, DeviceProfile, read_profile

out = Console(highlight=False)


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
        raise UserError(f"--clients {clients}: must be at least 1")
    fleet = read_fleet_table(files, None if profile is None else read_profile(profile))
    kind = _kind(fleet[0].profile, kd)
    grouped = group_devices(fleet, budget, tiers, kind)
    _show(fleet, grouped, kind, budget)
    if output is not None:
        ceilings = grouped.client_ceilings(clients)
        write_ceilings(output, ceilings)
        able = len(grouped.client_ceilings())
        dealt = "" if clients is None else f", dealt from the {able} devices that can take part"
        out.print(
            f"Ceilings of {len(ceilings)} clients{dealt}: {output}", markup=False, soft_wrap=True
        )
    if plot is not None:
        _draw(plot, fleet, grouped, kind, budget)
        out.print(f"Picture: {plot}", markup=False, soft_wrap=True)


def _kind(profile: DeviceProfile, kd: bool | None) -> bool | None:
    """Return with or without distillation: as asked, or what the profile names first, the recipe's own."""
    if kd is None:
        return profile.kd_kinds[0]
    if kd not in profile.kd_kinds:
        raise UserError(f"--{'kd' if kd else 'no-kd'}: the profiles were not measured {KINDS[kd]}")
    return kd


def _show(
    fleet: list[FleetDevice], grouped: DeviceGrouping, kind: bool | None, budget: Budget
) -> None:
    total = sum(grouped.counts.values())
    title = f"{total} devices, {fleet[0].profile.model} {KINDS[kind]}"
    table = Table("ceiling", "can carry it", "left out by it", "in this tier", title=title)
    for width in grouped.widths:
        lost = grouped.count_excluded(width)
        tier = f"{grouped.count_in_tier(width)}" if width in grouped.tiers else "-"
        table.add_row(str(width), str(total - lost), f"{lost} ({lost / total:.0%})", tier)
    out.print(table)
    unfit = [machine for machine in fleet if grouped.widest_fits[machine.name] is None]
    for machine in unfit[:5]:
        limits = " and ".join(machine.check_budget(budget, kind)[0].limits) or "a failed try"
        out.print(
            f"{machine.name} cannot take part: {limits} rules out even {grouped.widths[0]}",
            markup=False,
        )
    if len(unfit) > 5:
        out.print(f"... and {len(unfit) - 5} more kinds of devices cannot take part")


def _draw(
    path: Path, fleet: list[FleetDevice], grouped: DeviceGrouping, kind: bool | None, budget: Budget
) -> None:
    from fjord.report.fleet import DeviceRow, draw_fleet

    words = {m.name: tuple(_word(v) for v in m.check_budget(budget, kind)) for m in fleet}
    rows = [
        DeviceRow(m.name, m.count, words[m.name], grouped.device_ceiling(m.name)) for m in fleet
    ]
    left_out = [grouped.count_excluded(width) for width in grouped.widths]
    draw_fleet(
        path,
        grouped.widths,
        rows,
        left_out,
        grouped.tiers,
        f"{fleet[0].profile.model}, {KINDS[kind]}",
    )


def _word(verdict: BudgetVerdict) -> str:
    if verdict.fits:
        return "yes"
    return (
        "failed"
        if not verdict.limits
        else "both"
        if len(verdict.limits) == 2
        else verdict.limits[0]
    )
