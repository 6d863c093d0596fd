"""The share of time in which a thread was busy: of the last seconds, whoever asks and however often."""

from cloud_trainer.sessions.threads import WINDOW_SECONDS, BusyShare


class Thread:
    """A thread and a clock that a test moves on."""

    def __init__(self):
        self.now = self.busy = 0.0
        self.share = BusyShare(lambda: self.busy, lambda: self.now)

    def go_on(self, seconds, share):
        self.now += seconds
        self.busy += seconds * share


def test_the_share_is_of_the_time_since_the_beginning_at_first():
    thread = Thread()
    assert thread.share.of_last_seconds() == 0.0
    thread.go_on(4.0, 0.5)
    assert thread.share.of_last_seconds() == 0.5


def test_what_lies_longer_back_than_the_window_does_not_count():
    thread = Thread()
    thread.go_on(100.0, 1.0)
    assert thread.share.of_last_seconds() == 1.0
    for _ in range(round(WINDOW_SECONDS) + 1):
        thread.go_on(1.0, 0.25)
        thread.share.of_last_seconds()
    assert thread.share.of_last_seconds() == 0.25


def test_questions_in_quick_succession_do_not_shorten_the_window():
    thread = Thread()
    for _ in range(50):
        thread.go_on(0.1, 1.0)
        thread.share.of_last_seconds()
    for _ in range(50):
        thread.go_on(0.1, 0.0)
        thread.share.of_last_seconds()
    assert abs(thread.share.of_last_seconds() - 0.5) < 0.02
