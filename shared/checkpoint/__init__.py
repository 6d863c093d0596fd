"""What outlives a process: files that are written whole or not at all, checkpoints by name, and the folder of a session.

Knows nothing of models or gRPC.
"""

from shared.checkpoint.documents import seal, unseal
from shared.checkpoint.files import Files, FsspecFiles, LocalFiles, open_files
from shared.checkpoint.session_folder import SessionFolder
from shared.checkpoint.store import (
    LARGEST_NUMBER,
    MAX_NAMED,
    Checkpoint,
    CheckpointName,
    CheckpointStore,
    DamagedCheckpointError,
)

__all__ = [
    "LARGEST_NUMBER",
    "MAX_NAMED",
    "Checkpoint",
    "CheckpointName",
    "CheckpointStore",
    "DamagedCheckpointError",
    "Files",
    "FsspecFiles",
    "LocalFiles",
    "SessionFolder",
    "open_files",
    "seal",
    "unseal",
]
