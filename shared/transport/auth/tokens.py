"""Bearer tokens and their rights, from a file that holds their hashes only.

A token is 32 random bytes, so a plain SHA-256 of it cannot be turned back, and a stolen file gives no access. The file
is TOML, one table a token:

    [[token]]
    subject = "pi-7"
    scopes = ["train", "control", "read"]
    sha256 = "9f86d081..."
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from shared.config import Section, first_complaint, parse_toml
from shared.errors import ConfigError
from shared.transport.auth.scopes import Scope
from shared.transport.auth.secrets import read_file

TOKEN_BYTES = 32
"""Random bytes of a token."""


class TokenEntry(Section):
    """One token of the file."""

    subject: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]
    """Owner of the token. Sessions belong to a subject; several tokens may have the same subject."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    """Scopes that the token allows."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Its hash."""


class _TokenFile(Section):
    token: tuple[TokenEntry, ...] = ()


class TokenBook:
    """The tokens that are known."""

    def __init__(self, entries: Iterable[TokenEntry] = ()) -> None:
        self._entries = [(bytes.fromhex(entry.sha256), entry) for entry in entries]

    def allows(self, subject: str, scope: Scope) -> bool:
        """Tell whether any token of the subject has the scope."""
        return any(entry.subject == subject and scope in entry.scopes for _, entry in self._entries)

    def find(self, token: str) -> TokenEntry | None:
        """Find the entry of a token. Every entry is compared in constant time, so the duration says nothing of the tokens."""
        digest, found = digest_of(token), None
        for known, entry in self._entries:
            if hmac.compare_digest(known, digest):
                found = entry
        return found


def read_tokens(path: Path, key: str = "auth.tokens") -> TokenBook:
    """The book of a file that the configuration's `key` names.

    Raises ConfigError; an empty file is one that is being written, for no tokens are a comment.
    """
    data = read_file(path, key)
    if not data.strip():
        raise ConfigError(f"{key}: {path} is empty; a file that is to let nobody in must hold a comment that says so")
    try:
        content = parse_toml(data.decode())
        entries = _TokenFile.model_validate_json(json.dumps(content, default=str)).token
    except ValidationError as cause:
        raise ConfigError(f"{key}: {path}: {first_complaint(cause, 'the file')}") from cause
    except ValueError as cause:
        raise ConfigError(f"{key}: {path} is not valid TOML: {cause}") from cause
    if len({entry.sha256 for entry in entries}) < len(entries):
        raise ConfigError(f"{key}: {path} holds the same token twice")
    return TokenBook(entries)


def make_token(subject: str, scopes: Sequence[Scope]) -> tuple[str, str]:
    """A new token, and the table of the file that makes it known. Raises ConfigError for a subject that cannot be."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        entry = TokenEntry(subject=subject, scopes=tuple(dict.fromkeys(scopes)), sha256=digest_of(token).hex())
    except ValidationError as cause:
        raise ConfigError(
            f"subject {subject!r} cannot be; it must be 1 to 64 letters, digits or . _ @ -, with a scope or more"
        ) from cause
    listed = ", ".join(f'"{scope}"' for scope in entry.scopes)
    return token, f'[[token]]\nsubject = "{entry.subject}"\nscopes = [{listed}]\nsha256 = "{entry.sha256}"\n'


def digest_of(token: str) -> bytes:
    """The hash by which a token is known."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
