"""`cloud-trainer`: parses, builds, runs and closes."""

from typing import Annotated

import typer

from cloud_trainer.config import TrainerConfig
from cloud_trainer.control import access_commands
from cloud_trainer.control import commands as control_commands
from isthmus import importing
from shared.commands.entry import add_config, add_version, run_command
from shared.commands.options import ConfigFile, Overrides
from shared.config import load_config

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
) -> None:
    """Serve training sessions until SIGTERM or Ctrl-C."""
    with importing("cloud-trainer"):
        import asyncio

        from cloud_trainer.server import serve as serve_until_stopped
        from shared.telemetry.logs import configure_logs

    flags = [*(overrides or []), *([f"server.listen={listen}"] if listen else [])]
    loaded = load_config(TrainerConfig, config, flags)
    configure_logs(loaded.log.level, loaded.log.format)
    asyncio.run(serve_until_stopped(loaded))


access_commands.register(app)
control_commands.register(app)
add_config(app, TrainerConfig)


def main() -> None:
    """The console script."""
    run_command("cloud-trainer", app)


if __name__ == "__main__":
    main()
