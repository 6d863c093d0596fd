"""The help of every command: a reader looks through a few options at a time."""

from collections import Counter

import pytest
from typer.main import get_command

from cloud_trainer.main import app as trainer_app
from edge_agent.main import app as agent_app

MOST_OPTIONS = 10


def commands_of(command, name):
    """Yield each command of an app with its full name."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner_name, inner in command.commands.items():
        yield from commands_of(inner, f"{name} {inner_name}")


COMMANDS = dict(
    [*commands_of(get_command(agent_app), "edge-agent"), *commands_of(get_command(trainer_app), "cloud-trainer")]
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_panel_of_options_has_ten_at_most(name):
    options = [one for one in COMMANDS[name].params if one.param_type_name == "option" and not one.hidden]
    panels = Counter(one.rich_help_panel for one in options)
    assert max(panels.values(), default=0) <= MOST_OPTIONS, panels
