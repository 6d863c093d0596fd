"""Choosers of the placement, and which of them counts."""

from enum import IntEnum


class Chooser(IntEnum):
    """A chooser of the placement. Of two requests that wait for a boundary the higher chooser's counts, and of equals
    the later one.

    Once a placement is in force, any of them may choose the next one, within what those above leave open.
    """

    CONFIGURATION = 0
    """Start of a run: as configured, or as planned for the link if the configuration leaves the cut open."""
    RECOVERY = 1
    """Return to a checkpoint, or replacement of a lost worker. It is the only way to continue, so it needs no
    permission. The choosers below choose again after it, among the remaining workers."""
    EXCHANGE = 2
    """Schedule of a group's member, made again from what it measures. It changes what travels together alone."""
    ENGINE = 3
    """Decision engine, if `engine.profile` is set. It chooses all that is not pinned."""
    CHOICE = 4
    """Choice among several trainers. It chooses one, with the best cut, bits and K for it that are not pinned."""
    RELAY = 5
    """Trainer that is out of reach, and hands over to the one through which it is reached."""
    SCHEDULE = 6
    """List in `deployment.staleness`, `codec` or `downlink_codec`. It sets its own part, whichever chooser set the
    rest. Its values can neither be pinned nor left to an engine."""
    OPERATOR = 7
    """Pin, which holds until its release, or `place`, which holds until another request. `place` excludes an engine."""

    DRAIN = 8
    """Trainer that is about to stop, and hands over to another one whoever chose it."""

    def __str__(self) -> str:
        return self.name.lower()
