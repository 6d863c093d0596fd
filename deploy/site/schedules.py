"""The picture of a group's schedules: one period of each strategy on the layers of the demo, drawn as SVG."""

from collections.abc import Iterator
from html import escape
from itertools import accumulate, pairwise

from edge_agent.demo import processes
from edge_agent.planner_names import FLOW, STRATEGY_NAMES
from edge_agent.planning.schedules import (
    BACKWARD,
    FORWARD,
    PULL,
    PUSH,
    STRATEGIES,
    ExchangeSchedule,
    LayerEvent,
    load_layers,
)

LAYERS = processes.FILES / "layers.json"
WIDTH, LEFT, TOP = 1000, 190, 46
LANE_HEIGHT, LANE_STEP, STRATEGY_STEP = 16, 19, 76
LANES = {"pull": (PULL,), "compute": (FORWARD, BACKWARD), "push": (PUSH,)}
COLOURS = ("#80cbc4", "#90caf9", "#ffcc80", "#ef9a9a", "#ce93d8", "#bcaaa4")
"""By layer."""
TITLE = "One step by each strategy"
DESCRIPTION = (
    "Three lanes a strategy: pulls, computing, pushes, coloured by layer. With a barrier, pulls come first and pushes last; "
    "the strategies differ in how much of them lies beside the computing. By flow both links are busy beside all computing."
)


def drawn() -> str:
    """Return the picture as SVG."""
    return "\n".join(_elements()) + "\n"


def _elements() -> Iterator[str]:
    layers = load_layers(LAYERS)
    schedules = [STRATEGIES[name](layers) for name in STRATEGY_NAMES]
    scale = (WIDTH - LEFT - 20) / max(schedule.step_seconds for schedule in schedules)
    height = TOP + STRATEGY_STEP * len(schedules) + 14
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title desc" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    yield f'<title id="title">{escape(TITLE)}</title>'
    yield f'<desc id="desc">{escape(DESCRIPTION)}</desc>'
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    for place, name in enumerate(layers.names):
        x = LEFT + 110 * place
        yield f'<rect x="{x}" y="14" width="14" height="14" rx="3" fill="{COLOURS[place]}"/>'
        yield _text(x + 20, 25, name)
    for place, schedule in enumerate(schedules):
        yield from _strategy(schedule, TOP + STRATEGY_STEP * place, scale)
    yield "</svg>"


def _strategy(schedule: ExchangeSchedule, top: int, scale: float) -> Iterator[str]:
    yield _text(14, top + 13, schedule.strategy, weight="bold")
    yield _text(14, top + 32, f"{schedule.step_seconds:.2f} s a step", colour="#546e7a")
    if schedule.strategy == FLOW:
        yield _text(14, top + 50, "from the last", colour="#546e7a")
        yield _text(14, top + 65, "layer's forward on", colour="#546e7a")
    for row, (lane, kinds) in enumerate(LANES.items()):
        y = top + LANE_STEP * row
        yield _text(LEFT - 8, y + 12, lane, anchor="end", colour="#546e7a")
        yield f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 20}" height="{LANE_HEIGHT}" fill="#f5f7f8"/>'
        for event, begin, end in _parts([event for event in schedule.events if event.kind in kinds]):
            yield (
                f'<rect x="{LEFT + scale * begin:.1f}" y="{y}" width="{max(scale * (end - begin), 0.4):.1f}" '
                f'height="{LANE_HEIGHT}" fill="{COLOURS[event.layer]}"{_border(event)}/>'
            )


def _parts(events: list[LayerEvent]) -> Iterator[tuple[LayerEvent, float, float]]:
    """Yield the events with the times at which they are drawn: parts of one message stand behind each other, by their bytes."""
    messages: dict[tuple[float, float], list[LayerEvent]] = {}
    for event in events:
        messages.setdefault((event.begin, event.end), []).append(event)
    for (begin, end), parts in messages.items():
        sizes = [event.bytes[1] - event.bytes[0] for event in parts]
        times = accumulate(((end - begin) * size / sum(sizes) for size in sizes), initial=begin)
        yield from ((event, *span) for event, span in zip(parts, pairwise(times), strict=True))


def _border(event: LayerEvent) -> str:
    return ' stroke="#455a64" stroke-width="0.6"' if event.kind == BACKWARD else ""


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#263238"
) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'
