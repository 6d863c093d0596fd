"""The forms and bounds of what a peer, a record on disk or a command may say: ids, tickets, names, steps, times and rates.

Whoever takes such a value asks here before it becomes a path, a header, a label, a length or a figure. Knows no message.
"""

import re

AGENT = "edge"
"""The name of the agent among the workers."""
MOST_STEPS = 2**48
"""No run has more steps: one a microsecond would take nine years. Every number up to it is exact in JSON and in a float."""
MOST_TERMS = 2**48
"""No session is joined more often."""
MOST_SECONDS = 1e6
"""The longest that one piece of work may be said to take: eleven days."""
MOST_CLOCK_NANOSECONDS = 2**62
"""The latest that a monotonic clock may show: 146 years after its start."""
MOST_BITS_PER_SECOND = 1e15
"""The fastest that a link may be said to be."""
MOST_LABEL_TENSORS = 16
"""Greatest number of tensors that the labels of a batch may be."""
SAMPLES_AHEAD = 2
"""Number of steps whose samples leave before they begin, where nothing else is said."""
MOST_SAMPLES_AHEAD = 8
"""Greatest number of such steps."""
MOST_RECALLED_SAMPLES = 2**31 - 1
"""Greatest number of samples whose features a trainer keeps: their numbers travel as int32."""
MOST_RATE_DROPS = 10_000
"""Most times that a learning rate is lowered: each is one multiplication for who is told of it."""
MAX_DIMENSIONS = 8
"""Most dimensions of a tensor on a link (see `TensorHeader.shape`). The check comes before code loops over millions of them."""
MOST_METRIC_STATE_BYTES = 32 * 1024
"""Most bytes of the states of all metrics that a worker tells of an evaluation: they go to the agent in one report."""
MOST_WORKERS = 16
"""Workers of one session: what crosses between them is looked at pair by pair."""

_SESSION_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TICKET = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_WORKER = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)


def is_session_id(text: str) -> bool:
    """Tell whether this is the name of a session: 32 hexadecimal digits, of which an agent and each trainer make their own."""
    return _SESSION_ID.fullmatch(text) is not None


def is_ticket(text: str) -> bool:
    """Tell whether this can be a ticket, which a header has to carry."""
    return _TICKET.fullmatch(text) is not None


def is_worker(text: str) -> bool:
    """Tell whether this can be the name of a worker, which logs and tables show and metrics have as a label."""
    return _WORKER.fullmatch(text) is not None


def is_file_name(text: str) -> bool:
    """Tell whether this names a file or folder inside another one, and leads nowhere else."""
    return _FILE.fullmatch(text) is not None


def is_step(number: int) -> bool:
    """Tell whether a run can have this step, or end before it."""
    return 0 <= number <= MOST_STEPS


def is_term(number: int) -> bool:
    """Tell whether a session can have been joined with this term; 0 is the term of a session before its first join."""
    return 0 <= number <= MOST_TERMS


def is_duration(seconds: float) -> bool:
    """Tell whether a piece of work can have taken this time. NaN fails every comparison."""
    return 0 <= seconds <= MOST_SECONDS


def is_rate(bits_per_second: float) -> bool:
    """Tell whether a link can have this rate. NaN fails every comparison."""
    return 0 < bits_per_second <= MOST_BITS_PER_SECOND
