"""The page in a real browser, of a run that is told: what it shows, what it asks for, and what its buttons do."""

import asyncio
from itertools import groupby

import pytest

from edge_agent.control.status import history_answer
from edge_agent.training.history import HistoryRow
from shared.web.site import PAGE
from shared.wire.isthmus.v1 import control_pb2 as pb
from tests.support.browser import NothingBehind, served
from tests.support.chromium import Chromium

pytestmark = pytest.mark.slow
SCRIPT = "<img src=x onerror=document.title='read'><script>document.title='read'</script>"
TEXT = "document.body.textContent"
CURVE = "document.getElementById('curve').textContent"


class Told(NothingBehind):
    """A run whose every name is markup."""

    async def get_status(self, _request):
        names = (("edge", ["0:2"]), (SCRIPT, ["2:5", "7:9"]), ("far", ["5:7"]))
        workers = [pb.WorkerStatus(name=name, blocks=each, step=41, compute_seconds=0.0021) for name, each in names]
        status = pb.EdgeStatus(
            state=pb.RUN_STATE_AWAY,
            model=SCRIPT,
            session_id=SCRIPT,
            trainer=SCRIPT,
            step=41,
            total_steps=300,
            deployment=pb.DeploymentStatus(edge_blocks=2, blocks=9, codec=SCRIPT, bits=8, staleness_limit=3),
            loss=2.2909095287323,
            metrics={SCRIPT: 0.3214},
            workers=workers,
            links=[
                pb.LinkStatus(sender="edge", receiver=SCRIPT, bits_per_second=12.5e6),
                pb.LinkStatus(sender=SCRIPT, receiver="edge"),
            ],
            queues=pb.EdgeQueues(compute=7),
            waits_because=[SCRIPT],
            refused_change=SCRIPT,
            engine_change=pb.EngineChange(
                step=30, before="cut 2", chosen="cut 3", cause=SCRIPT, seconds_per_step=0.0085
            ),
        )
        return pb.EdgeControlServiceGetStatusResponse(status=status)

    async def get_history(self, _request):
        figures = {"train_loss": 1.5, "test_loss": 1.25, "accuracy": 0.5, "metrics": {SCRIPT: 0.25}}
        return pb.GetHistoryResponse(rows=[pb.HistoryRow(step=step, **figures) for step in (10, 20)])


class GoingOn(Told):
    """A run with the rows of these steps."""

    def __init__(self):
        super().__init__()
        self.steps = (10, 20)
        self.told = []

    async def get_history(self, request):
        rows = [HistoryRow(step, 1, step, 0.3, None, None, 0.1, 2, 0, 32, step / 3, 1, 1, 1.0) for step in self.steps]
        answer = history_answer(rows, request.after)
        self.told.append((answer.follows, [row.step for row in answer.rows]))
        return answer


@pytest.fixture
def browser():
    started = Chromium()
    yield started
    started.close()


async def test_all_is_text_of_one_origin_and_fits_at_every_width(browser, tmp_path):
    behind = Told()
    async with served(behind) as page:
        await asyncio.to_thread(look_at_it, browser, f"http://localhost:{page.port}/", tmp_path)
    assert ("Pause", pb.PauseRequest()) in behind.calls
    assert ("Pin", pb.PinRequest(cuts=[3, 7], bits=4)) in behind.calls
    assert ("Drain", pb.EdgeControlServiceDrainRequest()) in behind.calls
    assert ("Drain", pb.EdgeControlServiceDrainRequest(finish=True)) in behind.calls


def look_at_it(browser, url, folder):
    for width, dark in ((390, False), (390, True), (1280, False), (1280, True)):
        browser.shows(width, 900, dark=dark)
        browser.open(url)
        browser.until(
            "document.getElementById('rows').rows.length > 0 && document.getElementById('state').textContent === 'away'"
        )
        assert browser.tells("document.documentElement.scrollWidth <= innerWidth")
        assert browser.tells("document.images.length + document.scripts.length") == 1
        assert browser.tells("document.getElementById('title').textContent") == SCRIPT
        assert browser.tells("document.title") == f"13 % {SCRIPT}"
        shown = browser.tells(TEXT)
        for part in (
            "step 41 of 300",
            "12.5 Mbit/s",
            "not known yet",
            "2.10 ms a step",
            "2.291",
            "0.3214",
            "3, staleness 0",
            "8 bits",
            f"at step 30 from cut 2 to cut 3, because {SCRIPT}; 8.50 ms a step foreseen, ",
        ):
            assert part in shown, part
        assert "accuracy 0.5" in browser.tells(CURVE)
        browser.tells(
            "(one => { one.selectedIndex = 1; one.dispatchEvent(new Event('change')); })(document.getElementById('figure'))"
        )
        assert browser.tells(CURVE).startswith("0.125")
        browser.picture(folder / f"{width}-{dark}.png")
    grounds = [browser.tells("getComputedStyle(document.body).backgroundColor")]
    browser.shows(1280, 900)
    grounds.append(browser.tells("getComputedStyle(document.body).backgroundColor"))
    assert len(set(grounds)) == 2
    browser.tells("document.querySelector('[data-call=Pause]').click()")
    browser.until(f"{TEXT}.includes('training stands still before step')")
    browser.tells(
        "(form => { form.cut.value = '3,7'; form.bits.value = 4; form.requestSubmit(); })(document.getElementById('pin'))"
    )
    browser.until(f"{TEXT}.includes('pinned: nothing')")
    browser.tells("document.querySelector('[data-of=edge] [data-call=Drain]').click()")
    browser.until(f"{TEXT}.includes('the run ends at the next step boundary')")
    browser.tells("document.querySelector('[data-of=edge] [data-request*=finish]').click()")
    browser.until(f"{TEXT}.includes('the run ends at the next step boundary, with its results')")
    assert {request.rpartition("/isthmus")[0] or request[:-1] for request in browser.requested} == {url[:-1]}
    assert PAGE.stat().st_size < 150_000


async def test_rows_that_follow_are_added_to_those_that_are_shown_and_others_take_their_place(browser):
    behind = GoingOn()
    async with served(behind) as page:
        await asyncio.to_thread(follow_the_rows, browser, f"http://localhost:{page.port}/", behind)
    once = [told for told, _ in groupby(behind.told)]
    assert once == [(False, [10, 20]), (True, []), (True, [30]), (True, []), (False, [10, 15]), (True, [])]


def follow_the_rows(browser, url, behind):
    browser.open(url)
    rows = "[...document.getElementById('rows').rows].map(row => row.dataset.key).join()"
    for steps in ((10, 20), (10, 20, 30), (10, 15)):
        behind.steps = steps
        shown = ",".join(map(str, reversed(steps)))
        browser.until(f"(looks = 0, look(), {rows}) === '{shown}'")
        told = len(behind.told) + 3
        while len(behind.told) < told:
            browser.until("(looks = 0, look(), waiting)")
        assert browser.tells(rows) == shown
