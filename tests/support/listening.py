"""A listener to a run that calls what a test gives it."""

from edge_agent import TrainingListener


def _ignore(_news):
    pass


class Listening(TrainingListener):
    """Its methods are the functions that it is made with."""

    def __init__(self, progressed=_ignore, session_opened=_ignore, engine_started=_ignore, finished=_ignore):
        self.progressed = progressed
        self.session_opened = session_opened
        self.engine_started = engine_started
        self.finished = finished
