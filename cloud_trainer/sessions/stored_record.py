"""The record of a stored session: the request that opened it, its owner, and its last term."""

import base64
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from shared.checkpoint import SessionFolder
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest


@dataclass(frozen=True, slots=True)
class SessionOpening:
    """The opening of a session: its request, its owner, and the highest term that attached it."""

    request: OpenSessionRequest
    session_term: int
    subject: str
    """Subject that owns the session."""

    @property
    def document(self) -> dict[str, str]:
        """Return the content of its file. The term is a file of its own."""
        return {"request": base64.b64encode(self.request.SerializeToString()).decode(), "subject": self.subject}


def read_record(folder: SessionFolder) -> SessionOpening | None:
    """Read the record in the folder of a session; None if there is no credible one. Blocks. Raises StorageError."""
    document = folder.read()
    if document is None:
        return None
    try:
        request = OpenSessionRequest.FromString(base64.b64decode(document["request"]))
        return SessionOpening(request, folder.term(), str(document["subject"]))
    except (DecodeError, KeyError, TypeError, ValueError):
        return None
