"""The sections that both sides have: how they compute, talk, measure and log."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from shared.config.section import ControlAddress, ListenAddress, Section, is_loopback

MAX_CHUNK_BYTES = 4 * 1024 * 1024
"""Largest payload of one message that either side may choose, and so the least that a receiver must accept."""


class ComputeConfig(Section):
    device: Annotated[
        str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$", json_schema_extra={"allowed": "auto, cpu, cuda or cuda:N"})
    ] = "auto"
    """Device on which torch computes. "auto" takes the first GPU when there is one."""
    deterministic: bool = True
    """Makes a GPU compute the same bits every time: deterministic kernels where torch has them, a warning where it has
    none, and no TF32. It costs some speed. Runs on a GPU are equal bit for bit only with it. A CPU does not need it."""
    threads: NonNegativeInt = 0
    """Threads of one torch operation. 0 leaves the choice to torch. The thread count decides the order of sums and so
    the last bits of a result: runs that are compared bit for bit need the same one."""


class LinkConfig(Section):
    chunk_bytes: Annotated[int, Field(ge=1024, le=MAX_CHUNK_BYTES)] = 1024 * 1024
    """Largest payload of one message. A small one keeps a slow link responsive (64 to 256 KiB), a large one keeps a
    fast link cheap."""
    window_bytes: PositiveInt = 64 * 1024 * 1024
    """Most bytes under way to the peer before it acknowledges them. About two bandwidth-delay products keep a link full; more
    would only wait in a queue."""
    keepalive_seconds: PositiveFloat = 30.0
    """Silence of the link after which it is pinged. Below the idle timeout of mobile NATs (often 60 s), above what a
    metered link would mind."""
    stall_seconds: PositiveFloat = 20.0
    """Time for which bytes may be under way without an acknowledgement before the connection counts as lost. It does
    not limit the time of a tensor, because every chunk is acknowledged."""

    @model_validator(mode="after")
    def _window_holds_a_chunk(self) -> Self:
        if self.window_bytes < self.chunk_bytes:
            raise ValueError(
                f"window_bytes is {self.window_bytes}; it must hold a chunk, {self.chunk_bytes} bytes or more"
            )
        return self


class CheckpointsConfig(Section):
    location: str = "auto"
    """Folder in which sessions and their checkpoints are kept. "auto" is the state directory of the service or of the user,
    "none" keeps nothing, so a process that ends loses its session."""
    keep: PositiveInt = 3
    """Checkpoints of a session that are left on disk. More than one, because the newest may turn out to be damaged."""
    step_log: Path | None = Field(default=None, examples=["run/steps"])
    """Folder in which every step that is applied is written down with a hash, a file for each session. `edge-agent
    check-steps` reads it and proves that no step was lost or applied twice. Left out, nothing is written."""


class MetricsConfig(Section):
    listen: ListenAddress | None = Field(default=None, examples=["127.0.0.1:9464"])
    """Address at which Prometheus may fetch the metrics. Left out, they are not served."""


class ControlConfig(Section):
    listen: ControlAddress = "auto"
    """Address at which this process is watched and steered on its own machine: unix:/path of a socket, which only its
    user and root may open, or host:port on loopback, which every user of the machine may call. "auto" is a socket in
    the runtime directory of the service or the state directory of the user, control.sock or the first of control-2.sock
    and so on that is free; "none" is nowhere."""


class WebConfig(Section):
    listen: ListenAddress | None = Field(default=None, examples=["127.0.0.1:8080"])
    """Address at which a browser shows this process and steers it, as the control service does (`--web`). On loopback every
    user of the machine may; anywhere else the three keys below are needed. Left out, there is no page."""
    certificate: Path | None = Field(default=None, examples=["certificates/web.pem"])
    """Certificate of the page in PEM, itself first and then its chain. A browser must trust it, and name one of its hosts. This
    file, the key and the tokens are read again when they change."""
    key: Path | None = Field(default=None, examples=["certificates/web.key"])
    """Its private key in PEM, without a passphrase, closed to other users."""
    tokens: Path | None = Field(default=None, examples=["certificates/operators.toml"])
    """File of the tokens for which the page asks, as `cloud-trainer token` writes it: `read` shows, and what is steered needs
    `operate`, or `control` for a subject's own sessions. Left out, no token is asked for."""

    @model_validator(mode="after")
    def _closed_to_strangers(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together; set both or neither")
        if self.listen is None or is_loopback(self.listen):
            return self
        missing = [name for name, file in (("certificate", self.certificate), ("tokens", self.tokens)) if file is None]
        if missing:
            raise ValueError(
                f"listen is {self.listen}, which other machines may reach, without {' and '.join(missing)}; set certificate, "
                "key and tokens, or listen on 127.0.0.1"
            )
        return self


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""
    format: Literal["auto", "text", "json"] = "auto"
    """"auto" is text for a terminal and JSON, one object a line, for everything else."""
