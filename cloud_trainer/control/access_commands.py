"""`cloud-trainer certs` and `cloud-trainer token`: they make the credentials by which the two sides know each other."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from isthmus_entry_points import importing
from shared.errors import ConfigError
from shared.transport.auth.scopes import AN_AGENTS, Scope

_AUTHORITY_DAYS = 3650


def certs(
    directory: Annotated[Path, typer.Argument(help="Folder for the authority, certificates and keys.")],
    host: Annotated[list[str] | None, typer.Option(help="Name or address at which edges reach the trainer.")] = None,
    client: Annotated[list[str] | None, typer.Option(help="Name of an agent that gets a certificate.")] = None,
    days: Annotated[int, typer.Option(min=1, max=825, help="Days for which the certificates are valid.")] = 365,
) -> None:
    """Make an authority, the trainer's certificate and one for each agent; run again, it renews them."""
    from cloud_trainer.control.certificates import Identity, issue, make_authority, reachable_names, read_authority

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as cause:
        raise ConfigError(f"folder {directory} cannot be made: {cause.strerror}") from cause
    ca, ca_key = directory / "ca.pem", directory / "ca.key"
    if ca.exists() or ca_key.exists():
        authority = read_authority(ca, ca_key)
    else:
        authority = make_authority("Isthmus development CA", _AUTHORITY_DAYS)
        authority.write(ca, ca_key)
    identities = {"trainer": Identity("trainer", reachable_names(host or [], socket.gethostname()))}
    for name in client or ["edge"]:
        if name in ("ca", "trainer") or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ConfigError(
                f"client {name!r} cannot be; it must be of letters, digits and . _ -, and not ca or trainer"
            )
        identities[name] = Identity(name)
    for name, identity in identities.items():
        issue(authority, identity, days).write(directory / f"{name}.pem", directory / f"{name}.key")
    typer.echo(f"trainer:\n{_section(directory, 'trainer')}")
    for name in list(identities)[1:]:
        typer.echo(f"\n{name}:\n{_section(directory, name)}")
    typer.echo(f"\n{ca_key} signs for all of them: keep it off both machines.")


def token(
    subject: Annotated[str, typer.Argument(help="Whose token it is; sessions belong to a subject.")],
    file: Annotated[Path, typer.Option(help="The trainer's auth.tokens; the token's hash is added to it.")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="What the token allows. Left out: train, control and read, which an agent needs."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the token to this new file, closed to other users, and print nothing.")
    ] = None,
) -> None:
    """Make a token, add its hash to the trainer's file, and print it: nobody can find it out later."""
    with importing("cloud-trainer"):
        from shared.transport.auth.tokens import make_token, read_tokens

    secret, table = make_token(subject, scope or AN_AGENTS)
    if file.exists() and file.stat().st_size:
        read_tokens(file)
        table = "\n" + table
    if out is not None:
        _write_secret(out, secret)
    try:
        # Appended, so that the file keeps the owner and mode that the operator gave it.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as tokens:
            tokens.write(table)
    except OSError as cause:
        if out is not None:
            out.unlink()  # otherwise the trainer would not know this token
        raise ConfigError(f"{file} cannot be written: {cause.strerror}") from cause
    if out is None:
        typer.echo(secret)


def _write_secret(path: Path, secret: str) -> None:
    """Write a token to a new file that only its user may read, as an agent wants it. Raises ConfigError."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            made.write(secret + "\n")
    except FileExistsError as cause:
        raise ConfigError(
            f"--out {path} is there already and may be in use; remove it, or name another file"
        ) from cause
    except OSError as cause:
        raise ConfigError(f"--out {path} cannot be written: {cause.strerror}") from cause


def _section(directory: Path, name: str) -> str:
    return "\n".join(
        [
            "[tls]",
            f'certificate = "{directory / name}.pem"',
            f'key = "{directory / name}.key"',
            f'ca = "{directory / "ca.pem"}"',
        ]
    )


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.command("certs")(certs)
    app.command("token")(token)
