"""What runs on every worker of a session, whichever side it is: the watch over a silent peer, the judge of what it announces,
and what is remembered to be sent again.

`worker_run` carries out a worker's program of a placement over `link_end`s. Knows nothing of who dials whom.
"""

from shared.runtime.judging import ExpectedTensor, judge
from shared.runtime.resend_buffer import ResendBuffer
from shared.runtime.stall_watch import StallWatch

__all__ = ["ExpectedTensor", "ResendBuffer", "StallWatch", "judge"]
