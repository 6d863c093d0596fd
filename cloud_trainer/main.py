"""`cloud-trainer`: parses, builds, runs and closes."""

import os
from typing import Annotated

import typer

from cloud_trainer.control import access_commands
from cloud_trainer.control import commands as control_commands
from isthmus_entry_points import importing
from shared.commands.entry import add_config, add_version, run_command
from shared.commands.options import ConfigFile, Overrides

app = typer.Typer(
    help="Train the last blocks of the models of many edge agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_version("cloud-trainer", app)


@app.command()
def serve(
    config: ConfigFile = None,
    overrides: Overrides = None,
    listen: Annotated[str | None, typer.Option(help="host:port to listen on (server.listen).")] = None,
    web: Annotated[str | None, typer.Option(help="host:port of a page that shows and steers it (web.listen).")] = None,
) -> None:
    """Serve training sessions until SIGTERM or Ctrl-C."""
    os.environ.setdefault("GRPC_TRACE", "handshaker")  # before gRPC is imported; see cloud_trainer/rpc/connections.py
    with importing("cloud-trainer"):
        import asyncio

        from cloud_trainer.config import TrainerConfig
        from cloud_trainer.server import serve as serve_until_stopped
        from shared.commands.process_log import process_log
        from shared.config import load_config

    named = {"server.listen": listen, "web.listen": web}
    flags = [*(overrides or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]
    loaded = load_config(TrainerConfig, config, flags)
    with process_log(loaded.log) as raw_lines:
        asyncio.run(serve_until_stopped(loaded, raw_lines))


access_commands.register(app)
control_commands.register(app)
add_config(app, control_commands.trainer_config)


def main() -> None:
    """The console script."""
    run_command("cloud-trainer", app)


if __name__ == "__main__":
    main()
