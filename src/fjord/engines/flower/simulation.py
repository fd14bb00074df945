"""Flower's own simulation: clients in the processes of Ray, on the cores of this machine or of a Ray cluster."""

import logging
import os
import threading
from collections.abc import Callable

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.engines.flower.fleet import OFFLINE

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Without these, Ray calls home and gives advice."""


_Config = dict[
    str,
    int
    | float
    | str
    | bytes
    | bool
    | list[int]
    | list[float]
    | list[str]
    | list[bytes]
    | list[bool],
]
"""What Flower takes for Ray's settings."""


def run_simulation(
    serve: Callable[[Grid], object], app: ClientApp, *, num_nodes: int, workers: int
) -> None:
    """Call `serve` with a Grid whose nodes run the app in worker processes; all of them are gone afterwards."""
    for name, value in (OFFLINE | QUIET).items():
        os.environ.setdefault(name, value)
    try:
        import ray
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise UserError(
            f"--engine flower-sim: {error}; install it with: {install_hint('flower')}"
        ) from None
    logging.getLogger("flwr").setLevel(
        logging.CRITICAL
    )  # what goes wrong is in the metrics, or raised
    server = _Server(serve)
    resources: _Config = {"num_cpus": 1, "num_gpus": 0.0}
    start: _Config = {
        "num_cpus": workers,
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    try:
        run_simulation(
            server.app,
            app,
            num_nodes,
            backend_config={"client_resources": resources, "init_args": start},
        )
    except BaseException as error:  # such as Ctrl-C, or Ray not starting
        server.stop()
        if not isinstance(error, Exception):
            raise
        raise UserError(f"--engine flower-sim: Ray failed: {_first_cause(error)}") from error
    finally:
        ray.shutdown()
    if server.error:
        raise server.error


def _first_cause(error: BaseException) -> BaseException:
    return _first_cause(error.__cause__) if error.__cause__ else error


class _Server:
    """The server's part, which Flower runs in a thread of its own."""

    def __init__(self, serve: Callable[[Grid], object]) -> None:
        self.app, self.ended = ServerApp(), threading.Event()
        self.grid: Grid | None = None
        self.error: BaseException | None = None

        @self.app.main()
        def main(grid: Grid, context: Context) -> None:
            self.grid = grid
            try:
                serve(grid)
            except BaseException as error:  # Flower would wrap it
                self.error = error
            finally:
                self.ended.set()

    def stop(self) -> None:
        """End the thread at its next look for replies; it would wait for them, as nobody is left to send any."""

        def stopped(*_: object) -> None:
            raise KeyboardInterrupt

        for name in ("push_messages", "pull_messages", "get_node_ids"):
            setattr(self.grid, name, stopped)
        self.ended.wait(10)
