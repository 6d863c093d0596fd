"""Callbacks for runs of tests, whose events lie in this module, and a metric."""

import threading

from isthmus import RunHandle, StepFinished

told = []
"""Events that `Keeper`s of this process were told, in order."""
may_go_on = threading.Event()
"""While it is not set, what `waits` makes does not return."""


class Keeper:
    """Keeps events, and asks something of the run after a step."""

    def __init__(self, asks=None, after=0):
        self._asks, self._after = asks, after

    def __call__(self, event, run: RunHandle):
        told.append(event)
        if self._asks is not None and isinstance(event, StepFinished) and event.step + 1 == self._after:
            getattr(run, self._asks)()


def finishing(after):
    """A callback that asks the run to finish after each step from one on, so that the next process of a killed run asks too."""

    def ask(event, run):
        if isinstance(event, StepFinished) and event.step + 1 >= after:
            run.finish()

    return ask


def waits():
    """A callback that hangs until it may go on."""

    def wait(event, _run):
        may_go_on.wait()
        told.append(event)

    return wait


def fails(at="StepFinished"):
    """A callback that raises at the first event of a type, as a library does that ends the process."""

    def fail(event, _run):
        told.append(event)
        if type(event).__name__ == at:
            raise SystemExit("the disk of the tracker is full")

    return fail


def no_callback():
    """Make nothing that can be called."""
    return 3


def ends_badly():
    """A factory that fails."""
    raise RuntimeError("no such server")


def kinds(*of):
    """The events of these types that were told."""
    return [event for event in told if isinstance(event, of)]


def reset():
    """Forget what was told."""
    told.clear()
    may_go_on.clear()


def hits(output, labels):
    """The share of samples whose largest output is at the label, as a metric of a user's own."""
    return (output.argmax(1) == labels).float().mean()
