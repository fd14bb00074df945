"""Device tiers (section 5.1): which share of the clients can carry which width."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from fjord.core.errors import UserError
from fjord.core.seeding import ShuffledRange, derive_seed
from fjord.core.tables import read_csv
from fjord.core.width import Width, WidthLike, parse_width, uniform_widths


class DevicePopulation(Protocol):
    """The ceilings of a population."""

    @property
    def tiers(self) -> tuple[Width, ...]:
        """All ceilings that occur, in rising order."""

    def ceiling(self, client_id: int, round_index: int) -> Width:
        """Return the widest submodel this client can carry in this round."""


@dataclass(frozen=True)
class TieredDevices:
    """Clients in random order, divided into tiers of exact shares."""

    tiers: tuple[Width, ...]
    shares: tuple[Fraction, ...]
    num_clients: int
    seed: int

    def __post_init__(self) -> None:
        num_shares = len(self.shares)
        num_tiers = len(self.tiers)
        if num_shares != num_tiers:
            raise UserError(f"shares: {num_shares} were given for {num_tiers} tiers")
        if min(self.shares) < 0 or sum(self.shares) != 1:
            listed = ", ".join(map(str, self.shares))
            raise UserError(f"shares {listed} must not be negative and must add up to 1")

    def ceiling(self, client_id: int, round_index: int) -> Width:
        """Return the ceiling of the client's tier."""
        order = ShuffledRange(self.num_clients, derive_seed(self.seed, "tiers"))
        place = order[client_id]
        for tier, end in zip(self.tiers, accumulate(self.shares), strict=True):
            if place < end * self.num_clients:
                return tier
        return self.tiers[-1]


def drop_scale_shares(num_tiers: int, drop_scale: WidthLike = 1) -> tuple[Fraction, ...]:
    """Return the paper's shares: drop_scale / n for all tiers but the last, which has the rest.

    >>> [str(share) for share in drop_scale_shares(5, "0.5")]
    ['1/10', '1/10', '1/10', '1/10', '3/5']
    """
    share = parse_width(drop_scale) / num_tiers
    num_lower = num_tiers - 1
    rest = 1 - num_lower * share
    return (share,) * num_lower + (rest,)


def uniform_tiers(
    k: int,
    num_clients: int,
    *,
    drop_scale: WidthLike = 1,
    seed: int = 0,
) -> TieredDevices:
    """Return the tiers 1/k, 2/k, ..., 1 of the paper."""
    tiers = uniform_widths(k).widths
    return TieredDevices(
        tiers,
        drop_scale_shares(k, drop_scale),
        num_clients,
        seed,
    )


def shared_tiers(
    shares: Mapping[WidthLike, WidthLike],
    num_clients: int,
    *,
    seed: int = 0,
) -> TieredDevices:
    """Return tiers of any ceilings and shares, such as {"1/4": "0.7", "1": "0.3"}."""
    pairs = []
    for width, share in shares.items():
        pairs.append((parse_width(width), _parse_share(width, share)))
    pairs.sort()
    tiers = tuple(width for width, _ in pairs)
    return TieredDevices(
        tiers,
        tuple(share for _, share in pairs),
        num_clients,
        seed,
    )


def _parse_share(width: WidthLike, share: WidthLike) -> Fraction:
    try:
        return parse_width(share)
    except ValueError:
        fault = "is not a part of 1, such as '1/4', '0.25' or '25%'"
        raise UserError(f"share {share!r} of width {width} {fault}") from None


@dataclass(frozen=True)
class ListedDevices:
    """The ceiling of each client, one by one."""

    ceilings: Sequence[Width]

    @cached_property
    def tiers(self) -> tuple[Width, ...]:
        """All ceilings that occur."""
        return tuple(sorted(set(self.ceilings)))

    def ceiling(self, client_id: int, round_index: int) -> Width:
        """Return the client's own ceiling."""
        return self.ceilings[client_id]


def read_ceilings(path: str | Path, num_clients: int) -> ListedDevices:
    """Read ceilings from a file: a JSON list or object, or a CSV of client and ceiling."""
    path = Path(path)
    ceilings = {}
    try:
        for client_text, ceiling_text in _read_rows(path):
            client = int(client_text)
            ceiling = parse_width(ceiling_text)
            if client in ceilings:
                raise UserError(f"client {client} is listed more than once")
            ceilings[client] = ceiling
    except OSError as error:
        raise UserError(f"ceilings {path}: cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        allowed = "a JSON list or object, or client,ceiling rows"
        raise UserError(f"ceilings {path}: {error}; allowed: {allowed}") from error
    missing = [client for client in range(num_clients) if client not in ceilings]
    if missing:
        fault = f"{len(missing)} of {num_clients} clients have no ceiling"
        raise UserError(f"ceilings {path}: {fault}, the first of them client {missing[0]}")
    return ListedDevices([ceilings[client] for client in range(num_clients)])


def _read_rows(path: Path) -> list[tuple[Any, str]]:
    """Return pairs of a client and its ceiling."""
    if path.suffix == ".csv":
        return [(row["client"], row["ceiling"]) for row in read_csv(path)]
    text = path.read_text()
    # An object is read as pairs, because a dictionary would hide a client that is listed twice.
    content = json.loads(text, object_pairs_hook=list)
    if text.lstrip().startswith("["):
        content = enumerate(content)
    return [(client, str(ceiling)) for client, ceiling in content]


def parse_tiers(
    text: str,
    num_clients: int,
    *,
    drop_scale: Fraction = Fraction(1),
    seed: int = 0,
) -> DevicePopulation:
    """Return the devices meant by uniform-k, shares such as 1/4:0.7,1:0.3, or a file name."""
    kind, _, number = text.partition("-")
    if kind == "uniform" and number.isdigit():
        return uniform_tiers(
            int(number),
            num_clients,
            drop_scale=drop_scale,
            seed=seed,
        )
    if drop_scale != 1:
        raise UserError(f"drop_scale={drop_scale} needs tiers=uniform-k, not {text!r}")
    if ":" in text:
        pairs = [pair.partition(":") for pair in text.split(",")]
        shares: dict[WidthLike, WidthLike] = {width: share for width, _, share in pairs}
        return shared_tiers(shares, num_clients, seed=seed)
    if text.endswith((".json", ".csv")):
        return read_ceilings(text, num_clients)
    allowed = "uniform-k, shares such as 1/4:0.7,1:0.3 or a .json or .csv file of ceilings"
    raise UserError(f"is not {allowed}", field="tiers", value=text)


@dataclass(frozen=True)
class VaryingDevices:
    """Devices whose ceiling is a function of (client, round, usual ceiling): transient load."""

    usual: DevicePopulation
    ceiling_function: Callable[[int, int, Width], WidthLike]
    lowered_ceilings: tuple[Width, ...] = ()
    """Ceilings that the function may lower to, as far as they are known beforehand."""

    @property
    def tiers(self) -> tuple[Width, ...]:
        """The usual ceilings."""
        return self.usual.tiers

    def ceiling(self, client_id: int, round_index: int) -> Width:
        """Return the ceiling of this round."""
        usual_ceiling = self.usual.ceiling(client_id, round_index)
        ceiling = self.ceiling_function(client_id, round_index, usual_ceiling)
        return parse_width(ceiling)


def usual_devices(devices: DevicePopulation) -> DevicePopulation:
    """Return the devices without transient load."""
    while isinstance(devices, VaryingDevices):
        devices = devices.usual
    return devices


def busy_devices(
    devices: DevicePopulation,
    share: WidthLike,
    *,
    seed: int = 0,
) -> VaryingDevices:
    """Return devices of which, each round, a random share is one tier weaker than usual."""
    busy_share = parse_width(share)
    tiers = devices.tiers

    def lower_ceiling(client_id: int, round_index: int, usual: Width) -> Width:
        draw = derive_seed(seed, "busy", round_index, client_id)
        is_busy = Fraction(draw, 1 << 63) < busy_share
        lower_tiers = [tier for tier in tiers if tier < usual]
        if is_busy and lower_tiers:
            return lower_tiers[-1]
        return usual

    return VaryingDevices(devices, lower_ceiling)
