"""Flower's own simulation: clients in the processes of Ray, on the cores of this machine or of a Ray cluster."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Without these, Flower and Ray call home, Flower fetches packages for every run, and Ray prints advice."""


def simulate(serve: Callable[[Grid], None], app: ClientApp, *, num_nodes: int, workers: int) -> None:
    """Call `serve` with a Grid whose nodes run the app in worker processes; all of them are gone afterwards."""
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise ValueError(f"--engine flower-sim: {error}; install it with: pip install 'fjord-fl[flower]'") from None
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what goes wrong is in the metrics, or raised
    failed: list[BaseException] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(grid)
        except BaseException as error:  # Flower would wrap it
            failed.append(error)

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    start = {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        run_simulation(server, app, num_nodes, backend_config={"client_resources": resources, "init_args": start})
    finally:
        with suppress(Exception):
            ray.shutdown()
    if failed:
        raise failed[0]
