"""Flower's own simulation: clients in the processes of Ray, on this machine or a Ray cluster."""

import logging
import os
import threading
from collections.abc import Callable

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fjord.core.errors import UserError
from fjord.core.extras import install_hint
from fjord.engines.flower.programs import OFFLINE

QUIET_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Without these variables, Ray calls home and gives advice."""
RayValue = (
    int
    | float
    | str
    | bytes
    | bool
    | list[int]
    | list[float]
    | list[str]
    | list[bytes]
    | list[bool]
)
"""What Flower accepts as a setting of Ray."""


def run_simulation(
    serve: Callable[[Grid], object],
    app: ClientApp,
    *,
    num_nodes: int,
    workers: int,
) -> None:
    """Call `serve` with a Grid whose nodes run the app in worker processes, and end all of them."""
    for name, value in (OFFLINE | QUIET_RAY).items():
        os.environ.setdefault(name, value)
    try:
        import ray
        from flwr.simulation import run_simulation as run_flower_simulation
    except ImportError as error:
        hint = install_hint("flower")
        raise UserError(f"Flower's simulation: {error}; install it with: {hint}") from None
    # What goes wrong is in the metrics, or raised.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    server = _ServerThread(serve)
    try:
        run_flower_simulation(
            server.app,
            app,
            num_nodes,
            backend_config=_backend_config(workers),
        )
    except BaseException as error:  # such as Ctrl-C, or Ray not starting
        server.stop_waiting()
        if not isinstance(error, Exception):
            raise
        raise UserError(f"Flower's simulation: Ray failed: {_first_cause(error)}") from error
    finally:
        ray.shutdown()
    if server.error:
        raise server.error


def _backend_config(workers: int) -> dict[str, dict[str, RayValue]]:
    return {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {
            "num_cpus": workers,
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": "ERROR",
        },
    }


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


class _ServerThread:
    """The server's part, which Flower runs in a thread of its own."""

    def __init__(self, serve: Callable[[Grid], object]) -> None:
        self.app = ServerApp()
        self.ended = threading.Event()
        self.grid: Grid | None = None
        self.error: BaseException | None = None

        @self.app.main()
        def run_server(grid: Grid, context: Context) -> None:
            self.grid = grid
            try:
                serve(grid)
            except BaseException as error:  # Flower would wrap it
                self.error = error
            finally:
                self.ended.set()

    def stop_waiting(self) -> None:
        """End the thread at its next look for replies, as nobody is left to send any."""

        def raise_interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        for name in ("push_messages", "pull_messages", "get_node_ids"):
            setattr(self.grid, name, raise_interrupt)
        self.ended.wait(10)
