"""The parts that run on every worker of a session, on either side: the watch over a silent peer, and the check of its
announcements.

`placement_executor` carries out a worker's program of a placement over `link_end`s. Knows nothing of the direction of dialling.
"""

from shared.runtime.announcements import ExpectedTensor, check_announcement
from shared.runtime.stall_watch import StallWatch

__all__ = ["ExpectedTensor", "StallWatch", "check_announcement"]
