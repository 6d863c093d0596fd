"""Another model's weights to begin with: what fits is the file's, the rest the seed's, at every placement, after a stop."""

import pytest
import torch
from structlog.testing import capture_logs

from edge_agent.main import app as agent_app
from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, ExitCode, StoppedError
from shared.model.zoo import mlp, residual_cnn
from tests.support.commands import agent_fails, command
from tests.support.group_flags import SHARD, group_of, member, member_flags, trained
from tests.support.group_members import group_state
from tests.support.placement_kinds import INVERTED, RANGES, addresses_of, flags_of, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 12
FLAGS = [
    "model.kwargs={width=8, blocks=2, dropout=0.2}",
    'training.optimizer={name="adamw", learning_rate=0.003}',
    f"training.max_steps={STEPS}",
    "training.evaluate_every_epochs=0",
    "data.batch_size=64",
]
KINDS = [
    "two workers",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in RANGES if kind != "two workers"),
]


@pytest.fixture
def start(tmp_path):
    """The flag that begins with a checkpoint of a network of five classes, but for its classifier."""
    torch.manual_seed(99)
    state = residual_cnn(width=8, blocks=2, classes=5).state_dict()
    torch.save(
        {"epoch": 3, "state_dict": {name: value for name, value in state.items() if "batches" not in name}},
        tmp_path / "a.pth",
    )
    torch.save(state, tmp_path / "plain.pth")
    return f'training.start_from={{path="{tmp_path / "a.pth"}", allow=["classifier"]}}'


def expected_of(flags, tmp_path):
    return plain_state(edge_config(*FLAGS, f'training.start_from="{tmp_path / "plain.pth"}"', *flags))


@pytest.mark.parametrize("kind", KINDS)
async def test_every_placement_begins_with_what_fits_and_the_seed_s_head(start, tmp_path, kind):
    async with running_trainers() as servers:
        chosen = flags_of(kind, addresses_of(servers), tmp_path)
        permitted = ['privacy.inputs_to=["near"]'] if kind == INVERTED else []
        with capture_logs() as logs:
            result = await run_training(edge_config(*FLAGS, start, *chosen, *permitted))
    assert_same_bits(expected_of([], tmp_path), result.module.state_dict())
    (told,) = [entry for entry in logs if entry["event"] == "the weights of a file are loaded"]
    assert told["from_seed"] == "'classifier.weight' and 'classifier.bias'"
    assert told["unused"] == "'classifier.bias' and 'classifier.weight'"
    assert told["from_file"].startswith("'stem.0.weight', ")


def test_the_model_command_lists_both(start):
    shown = command(agent_app, "model", *(f"--set={flag}" for flag in (*FLAGS, start)))
    assert "from seed: 'classifier.weight' and 'classifier.bias'; unused: 'classifier.bias' and" in shown


def test_the_state_dict_of_several_that_is_taken_is_said(tmp_path):
    state = residual_cnn(width=8, blocks=2).state_dict()
    torch.save({"ema": state, "model": state}, tmp_path / "a.pth")
    for chosen, said in ((f'"{tmp_path / "a.pth"}"', True), (f'{{path="{tmp_path / "a.pth"}", key="ema"}}', False)):
        shown = command(agent_app, "model", *(f"--set={flag}" for flag in (*FLAGS, f"training.start_from={chosen}")))
        assert ("entry: 'model'; not taken: 'ema'" in " ".join(shown.split())) is said


async def test_the_members_of_a_group_begin_with_it_alike(tmp_path):
    torch.manual_seed(99)
    kwargs = edge_config(*member_flags(0)).model.kwargs
    torch.save(mlp(**{**kwargs, "outputs": 7}).state_dict(), tmp_path / "a.pth")
    start = f'training.start_from={{path="{tmp_path / "a.pth"}", allow=["3"]}}'
    async with running_trainer(*group_of(2)) as server:
        configs = [member(rank, server, size=2, more=[SHARD, start]) for rank in range(2)]
        states = await trained(configs)
    for state in states:
        assert_same_bits(group_state(configs), state)


@pytest.mark.slow
async def test_a_run_that_was_stopped_goes_on_with_the_same_file_alone(start, tmp_path):
    kept = f"checkpoints.location={tmp_path / 'edge'}"
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*FLAGS, start, kept, "deployment.cut=2", f"trainer.address={server.address}"]
        stop = Shutdown()
        with pytest.raises(StoppedError):
            await run_training(
                edge_config(*flags), Listening(lambda now: now.steps == 5 and stop.drain()), shutdown=stop
            )
        other = start.replace('"classifier"', '"classifier", "stem"')
        with pytest.raises(ConfigError, match=r"training\.start_from\.allow is .* and was "):
            await run_training(edge_config(*flags, other), resume=Resume())
        with capture_logs() as logs:
            result = await run_training(edge_config(*flags), resume=Resume())
    assert not [entry for entry in logs if entry["event"] == "the weights of a file are loaded"]
    assert_same_bits(expected_of([], tmp_path), result.module.state_dict())


@pytest.mark.parametrize(
    ("start_from", "says"),
    [
        ("absent.pth", "absent.pth cannot be read: No such file or directory"),
        (
            '{path="absent.pth", alow=["head.*"]}',
            "unknown key training.start_from.alow; did you mean training.start_from.allow?",
        ),
        ("{allow=[]}", "training.start_from.path is missing; it must be a path"),
        ("5", "training.start_from is 5; it must be a path, or a table as {"),
    ],
)
def test_first_weights_that_cannot_be(start_from, says):
    agent_fails(ExitCode.CONFIG, says, flags=[f"training.start_from={start_from}"])
