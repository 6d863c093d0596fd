"""Choosers of the placement, and which of them counts."""

from enum import IntEnum


class Chooser(IntEnum):
    """The chooser of a placement. Of two wishes that wait for a boundary the higher one counts, and of equals the later one.

    Once a placement is in force, any of them may choose the next one, within what those above leave open.
    """

    CONFIGURATION = 0
    """What a run begins with: as configured, or as planned for the link where the configuration leaves the cut open."""
    RECOVERY = 1
    """A checkpoint, to which all workers went back, or the replacement of a lost worker: nothing else can go on, so it asks
    nobody. Those below choose again after it, among the workers that are left."""
    ENGINE = 2
    """The decision engine, where `engine.profile` is set. It chooses what is not pinned."""
    SCHEDULE = 3
    """A list in `deployment.staleness`, `codec` or `downlink_codec`. It sets its own part, whoever has chosen the rest; what
    it sets can neither be pinned nor left to an engine."""
    OPERATOR = 4
    """A pin, which holds until it is released, or `place`, which holds until something else is wanted: there is none with an
    engine."""

    def __str__(self) -> str:
        return self.name.lower()
