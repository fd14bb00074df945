"""Times of requests made up for tests, and a clock that only requests move."""

from dataclasses import dataclass, field

import fjord

WIDTHS = fjord.uniform_widths(5).widths


IDLE = dict(zip(WIDTHS, (0.002, 0.005, 0.010, 0.015, 0.017), strict=True))


@dataclass
class Stage:
    """A clock that stands still but for what requests add to it."""

    now: float = 0.0
    load: float = 1.0
    used: list = field(default_factory=list)

    def clock(self):
        return self.now

    def net(self, width, inner):
        def run(x):
            self.now += IDLE[width] * self.load
            self.used.append(width)
            return inner(x)

        return run
