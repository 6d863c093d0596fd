"""Sessions that were opened with a placement, of which this trainer carries out one worker's part."""

from cloud_trainer.sessions.placed.building import BuiltWorker, build_worker
from cloud_trainer.sessions.placed.joining import Joining
from cloud_trainer.sessions.placed.session import PlacedSession, placed_session

__all__ = ["BuiltWorker", "Joining", "PlacedSession", "build_worker", "placed_session"]
