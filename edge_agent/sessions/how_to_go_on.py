"""The end of a failure's sentence: how the run can continue, for its reader."""

from edge_agent.sessions.stored_session import StoredSession
from shared.errors import ConfigError, GoneError, IsthmusError, StoppedError


def add_how_to_go_on(
    failure: IsthmusError, stored: StoredSession | None, resume_command: str, *, is_member: bool
) -> None:
    """Add to the sentence of `failure` the command that continues the stored session.

    stored: the session of the run; None if it had none. is_member: of a group of devices, which goes on. A lost session, and
    a configuration that would fail again, have sentences of their own.
    """
    if isinstance(failure, ConfigError | GoneError):
        return
    if stored is not None and stored.finished_step is not None:
        says = f"the trained model is kept, and {going_on(stored, resume_command)} writes its results"
    elif stored is not None and stored.resumable:
        says = f"{going_on(stored, resume_command)} goes on"
    elif isinstance(failure, StoppedError) and is_member:
        says = "the next run goes on with the group"
    elif isinstance(failure, StoppedError):
        says = "nothing is kept, so the next run is a new one"
    else:
        return
    failure.args = (f"{failure}; {says}", *failure.args[1:])


def add_run(failure: IsthmusError, stored: StoredSession | None) -> None:
    """Add to the sentence of `failure` the id of the run in the logs of all processes, once a trainer knows it."""
    if stored is not None and stored.record.session_id not in str(failure):
        failure.args = (f"{failure} (run {stored.record.session_id})", *failure.args[1:])


def going_on(stored: StoredSession, resume_command: str) -> str:
    """Return the command that continues this session. It has the id, so that a second use does not begin another run."""
    return f"`{resume_command} --session={stored.record.session_id}`"
