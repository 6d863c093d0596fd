"""The parts that run on every worker of a session, on either side: the watch over a silent peer, the check of its
announcements, and the buffer of tensors that may have to be sent again.

`placement_executor` carries out a worker's program of a placement over `link_end`s. Knows nothing of the direction of dialling.
"""

from shared.runtime.announcements import ExpectedTensor, check_announcement
from shared.runtime.resend_buffer import ResendBuffer
from shared.runtime.stall_watch import StallWatch

__all__ = ["ExpectedTensor", "ResendBuffer", "StallWatch", "check_announcement"]
