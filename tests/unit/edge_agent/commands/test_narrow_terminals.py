"""Tables on a terminal of eighty columns: no text that a reader needs is cut off."""

import io
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cloud_trainer.control.tables import sessions_table
from edge_agent.commands.model import render_table
from edge_agent.control.tables import status_table
from edge_agent.control.trend import Trend, bars
from edge_agent.experiment.model_report import BlockRow, SlotRow
from edge_agent.main import app
from shared.wire.isthmus.v1 import control_pb2 as pb

DIGITS = "shared.model.zoo:residual_cnn"


def shown(table):
    """Return the text on the terminal, and the same without borders and line ends, as a reader joins it."""
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def folded(text, column):
    """Return the text of one column of a table, its folded lines joined."""
    cells = [line.split("│")[column + 1].strip() for line in text.splitlines() if line.startswith("│")]
    return "".join(cells)


def test_a_trainers_sessions_are_whole():
    deployment = pb.DeploymentStatus(edge_blocks=12, blocks=40, staleness_limit=8, codec="uniform8", bits=8)
    sessions = [
        pb.TrainerSessionStatus(
            session_id="136a7a7f049579dd9a75349459839c53",
            state=pb.TRAINER_SESSION_STATE_ATTACHED,
            subject="greenhouse-raspberry-7",
            model="my_models.vision.classification:make_network",
            step=1_234_567,
            deployment=deployment,
            held_blocks="12:40",
        ),
        pb.TrainerSessionStatus(
            session_id="236a7a7f049579dd9a75349459839c53",
            state=pb.TRAINER_SESSION_STATE_KEPT,
            model=DIGITS,
            step=290,
            checkpoint_steps=[290, 281, 170],
        ),
    ]
    text = shown(sessions_table(sessions))
    assert "…" not in text
    for whole in (
        "136a7a7f049579dd9a75349459839c53",
        "attached, step 1234567",
        "blocks 12:40, K 8, 8 bits",
        "kept, step 290",
    ):
        assert whole in text
    runs = folded(text, 1)
    assert "my_models.vision.classification:make_network" in runs
    assert "greenhouse-raspberry-7" in runs
    assert "290, 281, 170" in text


def test_blocks_whose_names_differ_at_the_end_can_be_told_apart():
    names = [f"encoder.layers.encoder_layer_{number}.self_attention" for number in range(4)]
    costs = (7_087_872, 28_351_488, 56_702_976, True)
    rows = [
        BlockRow(block, name, *costs, (SlotRow((32, 197, 768), "float32", 19_365_888, f"block {block}", raw=False),))
        for block, name in enumerate(names)
    ]
    text = shown(render_table(rows))
    assert "…" not in text
    for name in names:
        assert name in folded(text, 1)


def test_a_model_is_shown_from_the_configuration_that_trains_it(tmp_path):
    config = tmp_path / "edge.toml"
    config.write_text('[model]\nfactory = "shared.model.zoo:mlp"\nkwargs = { hidden = 24 }\n')
    done = CliRunner().invoke(app, ["model", "--config", str(config), "--json"])
    assert done.exit_code == 0, done.output
    assert '"parameters": 1560' in done.output, "64 x 24 weights and 24 biases, for images of the digits"
    adam = ["--set", "training.optimizer.name=adam"]
    done = CliRunner().invoke(app, ["model", "--config", str(config), *adam, "--json"])
    assert f'"optimizer_bytes": {2 * (4 * 1560 + 4)}' in done.output, (
        "two moments, and a step for weights and for biases"
    )
    frozen = CliRunner().invoke(app, ["model", "--config", str(config), "--set", 'model.frozen=["0"]', "--json"])
    assert '"trainable": false' in frozen.output


@pytest.mark.parametrize(
    ("more", "named"), [(["--factory", DIGITS], "--example"), (["--example", "8x64"], "--factory")]
)
def test_without_a_configuration_both_are_asked_for(more, named):
    done = CliRunner().invoke(app, ["model", *more])
    assert done.exit_code != 0
    assert named in str(done.exception)


def test_a_watched_run_shows_its_speed_its_trend_and_the_time_left_in_colours():
    trend = Trend()
    for look in range(60):
        status = pb.EdgeStatus(
            state=pb.RUN_STATE_TRAINING,
            session_id="136a7a7f049579dd9a75349459839c53",
            attached=True,
            step=look,
            total_steps=1060,
            seconds_per_step=0.6,
            samples_per_second=53.3 + look,
            loss=2.0 / (1 + look),
            phases=pb.PhaseSeconds(edge=0.1, uplink=0.5, cloud=0.02, downlink=0.1),
        )
        trend.add(status)
    console = Console(width=80, file=io.StringIO(), record=True, force_terminal=True, color_system="standard")
    console.print(status_table(status, trend))
    coloured = console.export_text(styles=True, clear=False)
    text = console.export_text()
    assert "112 samples/s  ▁" in text
    assert "0.03333  █" in text, "the loss has fallen"
    assert "about 10 min left" in text
    assert max(map(len, text.splitlines())) <= 80
    assert len({code for code in re.findall(r"\x1b\[([0-9;]+)m", coloured) if code != "0"}) >= 4


def test_a_loss_that_is_no_number_has_a_place_in_the_trend():
    assert bars([1.0, float("nan"), 3.0, 2.0]) == "▁×█▅"
    assert bars([]) == ""
    assert bars([5.0, 5.0]) == "▁▁"
