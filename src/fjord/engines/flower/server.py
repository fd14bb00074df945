"""The server side as Flower starts it."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp import ServerApp as ServerApp


def server_app(serve: Callable[[Grid, Mapping[str, Any]], None]) -> ServerApp:
    """Return an app that calls `serve` with the Grid and the run's configuration."""
    app = ServerApp()

    @app.main()
    def run_server(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    return app
