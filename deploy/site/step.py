"""Draws the way of one step through both processes.

A lane is a thread, left to right is time, and a colour is a phase. Everything is placed on a grid of columns and lanes, so a
box moves by changing one number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 1340, 706
COLUMN_WIDTH, FIRST_COLUMN = 89, 138
BOX_WIDTH, BOX_HEIGHT = 84, 44
LANES = {
    "loading": 76,
    "edge compute": 146,
    "edge codec": 216,
    "edge loop": 286,
    "trainer loop": 438,
    "trainer codec": 508,
    "trainer compute": 578,
}
"""The middle of each lane, in pixels from the top; the link lies between the two loops."""
LANE_NAMES = {
    "loading": "loader's thread",
    "edge compute": "compute thread",
    "edge codec": "codec thread",
    "edge loop": "event loop",
    "trainer loop": "event loop",
    "trainer codec": "codec thread",
    "trainer compute": "compute thread",
}
QUICK_ELSEWHERE = {
    "loading": "quick: compute",
    "edge codec": "quick: event loop",
    "trainer codec": "quick: event loop",
}
"""The thread that does the work of a lane where it is quick."""
NEUTRAL, EDGE, UPLINK, CLOUD, DOWNLINK = "#eceff1", "#b2dfdb", "#bbdefb", "#d1c4e9", "#ffe0b2"
LEGEND = (
    (EDGE, "P1: edge"),
    (UPLINK, "P2: uplink"),
    (CLOUD, "P3: cloud"),
    (DOWNLINK, "P4: downlink"),
)
TITLE = "Two processes, their threads and queues, and the way of one step through them"
DESCRIPTION = (
    "On the device, the loader's thread or, where that is quick, the compute thread reads a batch, admission lets it "
    "start, and the compute thread runs the edge's blocks forward. The codec thread or, where that is quick, the "
    "event loop encodes the feature, and the event loop sends it after the labels, of which small ones go with it. "
    "Beside the GPU, the event loop judges and assembles both, the codec thread or, where that is quick, the event "
    "loop decodes, the compute thread runs forward, loss and backward, and updates once the error gradient has left. "
    "The gradient comes back the same way and is applied on the device's compute thread; the report of the loss comes"
    " beside it, and then the step is done. A queue lies wherever a step changes threads; where gradients come back, "
    "the bound of each is K + 1 batches or less."
)


@dataclass(frozen=True)
class Box:
    """A piece of work: where it stands, what it is called, and the phase that its colour shows."""

    column: float
    lane: str
    name: str
    detail: str
    phase: str

    @property
    def x(self) -> float:
        """The middle, from the left."""
        return FIRST_COLUMN + COLUMN_WIDTH * (self.column + 0.5)

    @property
    def y(self) -> float:
        """The middle, from the top."""
        return LANES[self.lane]


LOAD = Box(0, "loading", "1 load", "samples", NEUTRAL)
ADMIT = Box(1, "edge loop", "2 admit", "K + 1 in flight", NEUTRAL)
FORWARD = Box(2, "edge compute", "3 forward", "blocks [0, c)", EDGE)
ENCODE = Box(3, "edge codec", "4 encode", "the feature", UPLINK)
SEND = Box(4, "edge loop", "4 send", "labels first", UPLINK)
JUDGE = Box(5, "trainer loop", "5 judge", "and assemble", UPLINK)
DECODE = Box(6, "trainer codec", "5 decode", "both", UPLINK)
COMPUTE = Box(7, "trainer compute", "6 compute", "[c, L) and loss", CLOUD)
UPDATE = Box(9, "trainer compute", "6 update", "blocks [c, L)", CLOUD)
ENCODE_GRADIENT = Box(8, "trainer codec", "7 encode", "the gradient", DOWNLINK)
SEND_GRADIENT = Box(9, "trainer loop", "7 send", "the gradient", DOWNLINK)
JUDGE_GRADIENT = Box(10, "edge loop", "7 judge", "and assemble", DOWNLINK)
DECODE_GRADIENT = Box(11, "edge codec", "7 decode", "the gradient", DOWNLINK)
APPLY = Box(12, "edge compute", "8 apply", "replay, update", EDGE)
BOXES = (
    *(LOAD, ADMIT, FORWARD, ENCODE, SEND, JUDGE, DECODE, COMPUTE, UPDATE),
    *(ENCODE_GRADIENT, SEND_GRADIENT, JUDGE_GRADIENT, DECODE_GRADIENT, APPLY),
)
QUEUED = (
    (LOAD, FORWARD, "2 ready"),
    (FORWARD, ENCODE, "K + 1"),
    (DECODE, COMPUTE, "K + 1"),
    (COMPUTE, ENCODE_GRADIENT, "K + 1"),
    (DECODE_GRADIENT, APPLY, "K + 1"),
)
"""A queue lies between the two; what bounds it."""
DIRECT = (
    *((ENCODE, SEND), (SEND, JUDGE), (JUDGE, DECODE), (COMPUTE, UPDATE)),
    *((ENCODE_GRADIENT, SEND_GRADIENT), (SEND_GRADIENT, JUDGE_GRADIENT), (JUDGE_GRADIENT, DECODE_GRADIENT)),
)


def drawn() -> str:
    """The picture as SVG."""
    return "\n".join(_elements()) + "\n"


def _elements() -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title desc" '
        'font-family="system-ui, sans-serif" font-size="13">'
    )
    yield f'<title id="title">{escape(TITLE)}</title>'
    yield f'<desc id="desc">{escape(DESCRIPTION)}</desc>'
    yield (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="#37474f"/></marker></defs>'
    )
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    yield from _process(12, 326, "device: edge-agent", "#00897b")
    yield from _process(402, 636, "beside the GPU: cloud-trainer", "#1e88e5", name_below=True)
    for lane, y in LANES.items():
        yield f'<path d="M{FIRST_COLUMN - 8} {y}H{WIDTH - 24}" stroke="#eceff1" stroke-width="{BOX_HEIGHT + 12}"/>'
        elsewhere = QUICK_ELSEWHERE.get(lane, "")
        yield _text(28, y - 3 if elsewhere else y + 5, LANE_NAMES[lane], anchor="start", colour="#546e7a")
        if elsewhere:
            yield _text(28, y + 13, elsewhere, anchor="start", colour="#546e7a", size=11)
    yield from _ways()
    for box in BOXES:
        yield from _box(box)
    for column, (phase, name) in enumerate(LEGEND):
        x = FIRST_COLUMN + 200 * column
        yield f'<rect x="{x}" y="664" width="18" height="18" rx="3" fill="{phase}" stroke="#90a4ae"/>'
        yield _text(x + 26, 678, name, anchor="start")
    x = FIRST_COLUMN + 200 * len(LEGEND)
    yield _queue(x + 9, 673)
    yield _text(x + 30, 678, "a queue, and what bounds it", anchor="start")
    yield "</svg>"


def _process(top: int, bottom: int, name: str, colour: str, *, name_below: bool = False) -> Iterator[str]:
    yield (
        f'<rect x="12" y="{top}" width="{WIDTH - 24}" height="{bottom - top}" rx="8" fill="#fafafa" '
        f'stroke="{colour}" stroke-width="1.5"/>'
    )
    y = bottom - 9 if name_below else top + 20
    yield _text(28, y, name, anchor="start", colour=colour, weight="bold", size=15)


def _ways() -> Iterator[str]:
    for start, end, bound in QUEUED:
        yield _way(start, end)
        x, y = end.x, (start.y + end.y) / 2
        yield _queue(x, y)
        yield _text(x + 14, y + 4, bound, anchor="start", colour="#546e7a", size=11)
    for start, end in DIRECT:
        yield _way(start, end)
    link_y = (LANES["edge loop"] + LANES["trainer loop"]) / 2
    yield _text(JUDGE.x + 12, link_y - 4, "labels, then the feature", anchor="start", weight="bold")
    yield _text(JUDGE.x + 12, link_y + 14, "in chunks, as the peer's credits allow", anchor="start", colour="#546e7a")
    yield _text(JUDGE_GRADIENT.x + 12, link_y - 4, "error gradient", anchor="start", weight="bold")
    yield _text(JUDGE_GRADIENT.x + 12, link_y + 14, "and 9: the report of the loss", anchor="start", colour="#546e7a")
    # The circle closes: a step that is done lets another start.
    over = LANES["loading"] - BOX_HEIGHT / 2
    yield _path(f"M{APPLY.x} {APPLY.y - BOX_HEIGHT / 2}V{over}H{ADMIT.x}V{ADMIT.y - BOX_HEIGHT / 2 - 2}", dashed=True)
    yield _text(
        (APPLY.x + FORWARD.x) / 2, over + 18, "step t is done everywhere, so step t + K + 1 may start", colour="#546e7a"
    )
    yield _path(f"M{ADMIT.x + BOX_WIDTH / 2} {ADMIT.y}H{FORWARD.x}V{FORWARD.y + BOX_HEIGHT / 2 + 2}", dashed=True)


def _way(start: Box, end: Box) -> str:
    """From the side of one box to the top, the bottom or the side of the other."""
    down = 1 if end.y > start.y else -1
    if start.y == end.y:
        return _path(f"M{start.x + BOX_WIDTH / 2} {start.y}H{end.x - BOX_WIDTH / 2 - 2}")
    return _path(f"M{start.x + BOX_WIDTH / 2} {start.y}H{end.x}V{end.y - down * (BOX_HEIGHT / 2 + 2)}")


def _box(box: Box) -> Iterator[str]:
    left, top = box.x - BOX_WIDTH / 2, box.y - BOX_HEIGHT / 2
    yield (
        f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{box.phase}" stroke="#607d8b"/>'
    )
    yield _text(box.x, box.y - 3, box.name, weight="bold")
    yield _text(box.x, box.y + 14, box.detail, size=11, colour="#455a64")


def _queue(x: float, y: float) -> str:
    bars = "".join(f"M{x - 8 + 4 * bar} {y - 8}v16" for bar in range(5))
    return (
        f'<rect x="{x - 9}" y="{y - 9}" width="18" height="18" fill="#ffffff"/>'
        f'<path d="{bars}" stroke="#37474f" stroke-width="1.8"/>'
    )


def _path(commands: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="{commands}" fill="none" stroke="#37474f" stroke-width="1.6" marker-end="url(#tip)"{dashes}/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    weight: str = "normal",
    colour: str = "#263238",
    size: int = 13,
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
