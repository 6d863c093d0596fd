"""State that outlives a process: files that are written whole or not at all, checkpoints by name, and the folder of a session.

Knows nothing of models or gRPC.
"""

from shared.checkpoint.documents import seal, unseal
from shared.checkpoint.files import LocalFiles, open_files
from shared.checkpoint.folders import HELD_SECONDS, Files, Held
from shared.checkpoint.increments import MAX_INCREMENTS, Increment, Increments
from shared.checkpoint.object_store import FsspecFiles
from shared.checkpoint.session_folder import SessionFolder
from shared.checkpoint.store import (
    MAX_NAMED,
    Checkpoint,
    CheckpointName,
    CheckpointStore,
    DamagedCheckpointError,
)

__all__ = [
    "HELD_SECONDS",
    "MAX_INCREMENTS",
    "MAX_NAMED",
    "Checkpoint",
    "CheckpointName",
    "CheckpointStore",
    "DamagedCheckpointError",
    "Files",
    "FsspecFiles",
    "Held",
    "Increment",
    "Increments",
    "LocalFiles",
    "SessionFolder",
    "open_files",
    "seal",
    "unseal",
]
