"""Cost of a bare gRPC stream in each style, which is the least cost of any step: `python -m benchmarks.stream_floor`.

    python -m benchmarks.stream_floor [--rounds N] [--repeats N] [--style NAME ...] [--json PATH]

Two processes on loopback send each other the same bytes, one after the other, as a step with K = 0 does, in one message and in
eight. The table has milliseconds of processor time a round, of the end that begins and of the one that answers. The styles take
turns. uvloop is no dependency of the product: it is measured where it is installed.
"""

import importlib.util
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.bare_stream import STYLES, StreamCost, stream_cost
from benchmarks.support.machine import machine
from benchmarks.support.report import Spread, write_json

SIZES, MESSAGES = (50_000, 524_288, 4_000_000), (1, 8)


@dataclass(frozen=True)
class Floor:
    """The cost of a round of `count` bytes each way in one style."""

    style: str
    count: int
    messages: int
    client: Spread
    server: Spread


def measured(styles: list[str], count: int, messages: int, rounds: int, repeats: int) -> list[Floor]:
    """A floor a style."""
    costs: dict[str, list[StreamCost]] = {style: [] for style in styles}
    for _ in range(repeats):
        for style in styles:
            costs[style].append(stream_cost(style, count, messages, rounds))
    return [
        Floor(
            style,
            count,
            messages,
            Spread.of([one.client.seconds for one in some]),
            Spread.of([one.server.seconds for one in some]),
        )
        for style, some in costs.items()
    ]


def main() -> None:
    """Measure, and print one table."""
    here = [style for style in STYLES if style != "uvloop" or importlib.util.find_spec("uvloop")]
    parser = benchmark_parser("stream_floor", __doc__)
    parser.add_argument("--rounds", type=int, default=500, help="of the shorter of two runs (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs (%(default)s)")
    parser.add_argument("--style", nargs="+", choices=STYLES, default=here)
    arguments = parser.parse_args()
    table = Table("each way", "messages", "style", "who begins", "who answers")
    floors = []
    for count in SIZES:
        for messages in MESSAGES:
            for floor in measured(arguments.style, count, messages, arguments.rounds, arguments.repeats):
                floors.append(floor)
                table.add_row(
                    f"{count / 1e6:.2f} MB",
                    str(messages),
                    floor.style,
                    floor.client.show(1e3, 2),
                    floor.server.show(1e3, 2),
                )
    console = Console(width=120)
    console.print(f"{machine()}; milliseconds of processor time a round, median (quartiles) of {arguments.repeats}")
    console.print(table)
    write_json(arguments.json, "stream_floor", floors=floors)


if __name__ == "__main__":
    main()
