"""Draws the pictures of the pages into `docs/assets/`, each of what the program does:

`python -m deploy.site.pictures` draws all that need no Prometheus, and with `dashboard` behind it the one that does.
"""

from pathlib import Path
from typing import Annotated

import typer

from deploy.demo import demo_engine
from deploy.demo.race_picture import draw_race
from deploy.site import dashboard, schedules, session, step, terminal, watched
from edge_agent.demo import processes

ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
STEP, SESSION, PLACEMENT = ASSETS / "step.svg", ASSETS / "session.svg", ASSETS / "placement.svg"
TOP, TIMELINE = ASSETS / "top.svg", ASSETS / "timeline.png"
SIMULATION, DASHBOARD = ASSETS / "simulate.png", ASSETS / "dashboard.png"
SCHEDULES = ASSETS / "schedules.svg"
RACE = ASSETS / "demo-engine.svg"
WIDTH = 84
"""Width of a terminal, in characters."""


def draw_step() -> None:
    """Draw the way of a step through both processes."""
    STEP.write_text(step.drawn(), encoding="utf-8")


def draw_schedules() -> None:
    """Draw one period of each strategy of a group."""
    SCHEDULES.write_text(schedules.drawn(), encoding="utf-8")


def draw_session() -> None:
    """Draw a run of the demo."""
    session.draw(SESSION)


def draw_placement() -> None:
    """Draw what `edge-agent placement` prints of the first placement of its page."""
    arguments = ("placement", "--set", "deployment.cut=2")
    printed = terminal.printed_by([processes.script("edge-agent"), *arguments], WIDTH)
    terminal.draw(f"edge-agent {' '.join(arguments)}", printed.rstrip(), PLACEMENT, WIDTH)


def draw_watched() -> None:
    """Draw `edge-agent top` and the time line, of one run."""
    watched.draw(TOP, TIMELINE)


def draw_simulation() -> None:
    """Draw the example of the decision engine's page."""
    files = (
        f"--profile={processes.FILES / 'profile.json'}",
        f"--trace={processes.FILES / 'drop.csv'}",
        f"--png={SIMULATION}",
    )
    link = ("--downlink=50mbit", "--round-trip=40ms", "--planner=greedy")
    terminal.printed_by([processes.script("edge-agent"), "simulate", *files, *link], WIDTH)


def draw_race_of_the_demo() -> None:
    """Draw what `make demo-engine` does, which takes as long."""
    draw_race(demo_engine.raced(), RACE)


def draw_dashboard() -> None:
    """Draw the head of the edge's dashboard; needs Prometheus."""
    dashboard.draw(DASHBOARD)


COMMANDS = {
    "step": (draw_step, (STEP,)),
    "schedules": (draw_schedules, (SCHEDULES,)),
    "session": (draw_session, (SESSION,)),
    "placement": (draw_placement, (PLACEMENT,)),
    "watched": (draw_watched, (TOP, TIMELINE)),
    "simulate": (draw_simulation, (SIMULATION,)),
    "race": (draw_race_of_the_demo, (RACE,)),
    "dashboard": (draw_dashboard, (DASHBOARD,)),
}
"""Functions that draw, and the pictures that each makes."""
WITHOUT_PROMETHEUS = [name for name in COMMANDS if name != "dashboard"]


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join(COMMANDS)}; all that need no Prometheus when absent.")
    ] = None,
) -> None:
    """Draw pictures of the pages."""
    processes.end_on_sigterm()
    for name in names or WITHOUT_PROMETHEUS:
        if name not in COMMANDS:
            raise typer.BadParameter(f"{name} is none of {', '.join(COMMANDS)}")
        draw, pictures = COMMANDS[name]
        draw()
        for picture in pictures:
            typer.echo(picture)


if __name__ == "__main__":
    typer.run(main)
