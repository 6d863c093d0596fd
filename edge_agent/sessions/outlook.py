"""The end of a failure's sentence: how the run goes on, for the person who reads it."""

from edge_agent.sessions.stored_session import StoredSession
from shared.errors import ConfigError, GoneError, IsthmusError, StoppedError


def add_outlook(failure: IsthmusError, stored: StoredSession | None, resume_command: str) -> None:
    """Say in the sentence of `failure` which command goes on with what is stored.

    stored: the session of the run; None where it had none. A session that is gone, and a configuration that the same command
    would meet again, have sentences of their own.
    """
    if isinstance(failure, ConfigError | GoneError):
        return
    if stored is not None and stored.finished_step is not None:
        says = f"the trained model is kept, and {going_on(stored, resume_command)} writes its results"
    elif stored is not None and stored.resumable:
        says = f"{going_on(stored, resume_command)} goes on"
    elif isinstance(failure, StoppedError):
        says = "nothing is kept, so the next run is a new one"
    else:
        return
    failure.args = (f"{failure}; {says}", *failure.args[1:])


def add_run(failure: IsthmusError, stored: StoredSession | None) -> None:
    """Say in the sentence of `failure` by which id the logs of all processes name the run, once a trainer knows it."""
    if stored is not None and stored.record.session_id not in str(failure):
        failure.args = (f"{failure} (run {stored.record.session_id})", *failure.args[1:])


def going_on(stored: StoredSession, resume_command: str) -> str:
    """The command for this very session: with the id, so that typed a second time it does not begin another run."""
    return f"`{resume_command} --session={stored.record.session_id}`"
