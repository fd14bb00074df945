"""Device tiers (section 5.1): which share of the clients can carry which width."""

import json
from collections import Counter
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
        if len(self.shares) != len(self.tiers):
            raise UserError(f"shares: {len(self.shares)} were given for {len(self.tiers)} tiers")
        if min(self.shares) < 0 or sum(self.shares) != 1:
            raise UserError(
                f"shares {', '.join(map(str, self.shares))} must not be negative and must add up to 1"
            )

    def ceiling(self, client_id: int, round_index: int) -> Width:
        """Return the ceiling of the client's tier."""
        place = ShuffledRange(self.num_clients, derive_seed(self.seed, "tiers"))[client_id]
        for tier, end in zip(self.tiers, accumulate(self.shares), strict=True):
            if place < end * self.num_clients:
                return tier
        return self.tiers[-1]


def drop_scale_shares(num_tiers: int, drop_scale: WidthLike = 1) -> tuple[Fraction, ...]:
    """Return the paper's shares: drop_scale / n for all tiers but the last, which has the rest.

    >>> [str(s) for s in drop_scale_shares(5, "0.5")]
    ['1/10', '1/10', '1/10', '1/10', '3/5']
    """
    low = parse_width(drop_scale) / num_tiers
    return (low,) * (num_tiers - 1) + (1 - (num_tiers - 1) * low,)


def uniform_tiers(
    k: int, num_clients: int, *, drop_scale: WidthLike = 1, seed: int = 0
) -> TieredDevices:
    """Return the tiers 1/k, 2/k, ..., 1 of the paper."""
    return TieredDevices(
        uniform_widths(k).widths, drop_scale_shares(k, drop_scale), num_clients, seed
    )


def shared_tiers(
    shares: Mapping[WidthLike, WidthLike], num_clients: int, *, seed: int = 0
) -> TieredDevices:
    """Return tiers of any ceilings and shares, such as {"1/4": "0.7", "1": "0.3"}."""
    exact = sorted((parse_width(width), _share(width, share)) for width, share in shares.items())
    return TieredDevices(tuple(w for w, _ in exact), tuple(s for _, s in exact), num_clients, seed)


def _share(width: WidthLike, share: WidthLike) -> Fraction:
    try:
        return parse_width(share)
    except ValueError:
        raise UserError(
            f"share {share!r} of width {width} is not a part of 1, such as '1/4', '0.25' or '25%'"
        ) from None


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
    """Read ceilings from a file: a JSON list or object, or a CSV with the columns client and ceiling."""
    path = Path(path)
    try:
        found = [(int(client), parse_width(ceiling)) for client, ceiling in _rows(path)]
        ceilings = dict(found)
        if len(ceilings) < len(found):
            twice = next(
                client
                for client, times in Counter(client for client, _ in found).items()
                if times > 1
            )
            raise UserError(f"client {twice} is listed more than once")
    except OSError as error:
        raise UserError(f"ceilings {path}: cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"ceilings {path}: {error}; allowed: a JSON list or object, or client,ceiling rows"
        ) from error
    missing = [client for client in range(num_clients) if client not in ceilings]
    if missing:
        listed = f"{len(missing)} of {num_clients} clients have no ceiling, the first of them client {missing[0]}"
        raise UserError(f"ceilings {path}: {listed}")
    return ListedDevices([ceilings[client] for client in range(num_clients)])


def _rows(path: Path) -> list[tuple[Any, str]]:
    if path.suffix == ".csv":
        return [(row["client"], row["ceiling"]) for row in read_csv(path)]
    text = path.read_text()
    loaded = json.loads(
        text, object_pairs_hook=list
    )  # pairs, as a dictionary would hide a client listed twice
    pairs = enumerate(loaded) if text.lstrip().startswith("[") else loaded
    return [(client, str(ceiling)) for client, ceiling in pairs]


def parse_tiers(
    text: str, num_clients: int, *, drop_scale: Fraction = Fraction(1), seed: int = 0
) -> DevicePopulation:
    """Return the devices that text means: uniform-k, shares such as 1/4:0.7,1:0.3, or a file of ceilings."""
    if text.startswith("uniform-") and text[8:].isdigit():
        return uniform_tiers(int(text[8:]), num_clients, drop_scale=drop_scale, seed=seed)
    if drop_scale != 1:
        raise UserError(f"drop_scale={drop_scale} needs tiers=uniform-k, not {text!r}")
    if ":" in text:
        pairs = (pair.partition(":") for pair in text.split(","))
        return shared_tiers({width: share for width, _, share in pairs}, num_clients, seed=seed)
    if text.endswith((".json", ".csv")):
        return read_ceilings(text, num_clients)
    raise UserError(
        f"tiers={text!r} is not uniform-k, shares such as 1/4:0.7,1:0.3 or a .json or .csv file of ceilings"
    )


@dataclass(frozen=True)
class VaryingDevices:
    """Devices whose ceiling follows a function of (client, round, usual ceiling): transient load."""

    usual: DevicePopulation
    function: Callable[[int, int, Width], WidthLike]
    lowered_ceilings: tuple[Width, ...] = ()
    """Ceilings that it may lower to, as far as they are known beforehand."""

    @property
    def tiers(self) -> tuple[Width, ...]:
        """The usual ceilings."""
        return self.usual.tiers

    def ceiling(self, client_id: int, round_index: int) -> Width:
        """Return the ceiling of this round."""
        return parse_width(
            self.function(client_id, round_index, self.usual.ceiling(client_id, round_index))
        )


def usual_devices(devices: DevicePopulation) -> DevicePopulation:
    """Return the devices without transient load."""
    return usual_devices(devices.usual) if isinstance(devices, VaryingDevices) else devices


def busy_devices(devices: DevicePopulation, share: WidthLike, *, seed: int = 0) -> VaryingDevices:
    """Return the same devices where each round a random share of them is one tier weaker than usual."""
    chance, tiers = parse_width(share), devices.tiers

    def lowered(client_id: int, round_index: int, usual: Width) -> Width:
        below = [tier for tier in tiers if tier < usual]
        loaded = Fraction(derive_seed(seed, "busy", round_index, client_id), 1 << 63) < chance
        return below[-1] if loaded and below else usual

    return VaryingDevices(devices, lowered)
