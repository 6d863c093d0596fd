"""Commands that call the control service of the process that runs on this machine, whichever of the two it is."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.commands.options import ConfigFile, Overrides
from shared.control.address import described_target, find_targets
from shared.control.choices import LEAST_SECONDS, MOST_SECONDS, SOON_SECONDS, LevelName
from shared.control.formatting import show
from shared.errors import ConfigError

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import RenderableType

    from shared.config import Config
    from shared.control.calling import ControlService

AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON, as grpcurl prints it.")]
Control = Annotated[str | None, typer.Option(help="Where it is controlled: unix:/path or host:port (control.listen).")]
Interval = Annotated[float, typer.Option(help="Seconds between two looks.", min=LEAST_SECONDS, max=MOST_SECONDS)]
Level = Annotated[LevelName, typer.Argument(help="The least severe level that is written.")]


class NotControlledError(ConfigError):
    """The configuration says that the process is controlled from nowhere."""


class SeveralControlledError(ConfigError):
    """Several processes may be meant."""


@dataclass(frozen=True, slots=True)
class ControlCall:
    """The service that one command calls, and the form in which it shows answers."""

    service: "ControlService"
    as_json: bool

    def show(self, answer: "Message", shown: "RenderableType") -> None:
        """Print an answer: `shown`, or the answer itself where the user wants JSON."""
        show(answer, shown, as_json=self.as_json)

    def set_level(self, level: LevelName) -> None:
        """`log-level`."""
        answer = self.service.call("SetLogLevel", SOON_SECONDS, level=f"LOG_LEVEL_{level.name}")
        self.show(answer, f"the log level is {level.value}")


@dataclass(frozen=True, slots=True)
class ControlCommands:
    """The common parts of one program's control commands."""

    program: str
    """As it is installed: "edge-agent"."""
    who: str
    """As sentences name it: "agent"."""
    config: "Callable[[], type[Config]]"
    """Import of the class of the program's configuration; it has the section [control]."""
    service: str
    """Name of its control service in the contract."""

    @contextmanager
    def calling(
        self, config: Path | None, overrides: list[str] | None, control: str | None
    ) -> "Iterator[ControlService]":
        """The running process's service, found by these options.

        Raises NotControlledError where control.listen is "none", SeveralControlledError where several processes of this user
        may be meant, UnreachableError when nobody listens, RefusedError for a
        refusal.
        """
        kind = self.config()
        # Only here: --help has no use for gRPC and the contract.
        from shared.config import load_config
        from shared.control.calling import calling
        from shared.wire.isthmus.v1.control_pb2 import DESCRIPTOR

        loaded: Any = load_config(kind, config, overrides or [])
        listen = control or loaded.control.listen
        if listen == "none":
            raise NotControlledError(
                f"control.listen is none, so the {self.who} cannot be controlled; give --control, or set another"
            )
        target, *others = find_targets(listen, self.program)
        if others:
            raise SeveralControlledError(
                f"{len(others) + 1} {self.who}s of this user run; give --control with the one that is meant: "
                + ", ".join(map(described_target, (target, *others)))
            )
        with calling(target, self.who, DESCRIPTOR.services_by_name[self.service]) as service:
            yield service

    def command(self, body: Callable[..., None]) -> Callable[..., None]:
        """The command that does what `body` does with its ControlCall.

        It takes the parameters of `body` after the first, and the options that all control commands share.
        """

        @functools.wraps(body, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        def run(
            config: ConfigFile = None,
            overrides: Overrides = None,
            control: Control = None,
            as_json: AsJson = False,
            **own: Any,
        ) -> None:
            with self.calling(config, overrides, control) as service:
                body(ControlCall(service, as_json), **own)

        _, *own = inspect.signature(body).parameters.values()
        *found_by, as_json, _ = inspect.signature(run, follow_wrapped=False).parameters.values()
        # typer reads the parameters of a command from these two.
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*found_by, *own, as_json)]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run
