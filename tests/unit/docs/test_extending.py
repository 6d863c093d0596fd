"""What the page on extending shows is run as it stands there: each example is loaded, registered by one line, and used."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from shared.codec import codec_bits, codec_by_name, codec_of_bits, registry
from shared.config import Section
from shared.model.chain import build_chain
from shared.planning import PLANNERS, Link, Rates, SearchSpace, Trace, compare
from shared.planning.comparison import CONTESTANTS, run_held
from shared.training import block_state
from shared.training.losses import LOSSES, LossHead
from shared.training.optimizers import OPTIMIZERS, OptimizerConfig, optimizer_bytes
from shared.training.policies import POLICIES
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.split_simulation import Scheme, Simulation, steady_events
from shared.training.stage import Stage
from tests.support.pages import blocks
from tests.support.planning_cases import small_profile

CPU = torch.device("cpu")
EXAMPLES = {block.title: block.text for block in blocks("extending.md") if block.language == "python"}
SHOWN = {"signs.py", "asgd.py", "halves.py", "dropping.py", "huber.py"}


def shown(file: str, monkeypatch) -> ModuleType:
    """The file of the page, imported as the module that it would be."""
    (title,) = [title for title in EXAMPLES if title.endswith(f"/{file}")]
    name = title.removesuffix(".py").replace("/", ".")
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(EXAMPLES[title], title, "exec"), module.__dict__)
    return module


def recipe(**changes) -> Recipe:
    told = {"optimizer": OptimizerConfig(learning_rate=0.1), "schedule": ScheduleConfig(), "loss": "mse", "seed": 0}
    return Recipe(**told | {"steps_per_epoch": 8, "total_steps": 8} | changes)


def chain():
    torch.manual_seed(3)
    return build_chain(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), torch.ones(8, 6))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator)


def simulated(scheme, told, steps):
    """The module after so many steps across a cut, and each step's loss."""
    built = chain()
    simulation = Simulation(built, 2, told, scheme, CPU)
    losses = simulation.run(steady_events(0, steps, scheme.staleness), (batch(step) for step in range(steps)))
    return built.module.state_dict(), [loss.loss for loss in losses]


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_every_example_of_the_page_is_tried():
    assert {title.rpartition("/")[2] for title in EXAMPLES} == SHOWN


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (0, 4)])
def test_a_codec_goes_to_and_fro_and_trains_two_steps(monkeypatch, shape):
    (codec,) = shown("signs.py", monkeypatch).CODECS
    monkeypatch.setitem(registry.CODECS, codec.name, codec)
    assert codec_by_name("signs1").spec.lossy
    assert codec_bits("signs1") == 1
    assert codec_of_bits(8, like="signs1") == "uniform8", "which the engine turns to where it wants more bits"
    tensor = torch.randn(shape)
    encoded = codec.encode(tensor)
    assert encoded.payload.nbytes == codec.encoded_bytes(shape, torch.float32)
    assert torch.equal(codec.decode(encoded), torch.where(tensor > 0, 1.0, -1.0))
    trained, _ = simulated(Scheme(codec="signs1"), recipe(), 2)
    assert not same(trained, simulated(Scheme(), recipe(), 2)[0])


def test_an_optimizer_trains_bit_equal_across_a_cut_and_a_migration(monkeypatch):
    spec = shown("asgd.py", monkeypatch).ASGD
    monkeypatch.setitem(OPTIMIZERS, spec.name, spec)

    class Chosen(Section):
        """What `training.optimizer` is once the optimizer has its line."""

        name: str = "asgd"
        clip_norm: float | None = None
        learning_rate: float = 0.1
        weight_decay: float = 0.01
        averaging_from: float = 2.0

    told = recipe().model_copy(update={"optimizer": Chosen()})
    whole, split = chain(), chain()
    optimizer = torch.optim.ASGD(whole.module.parameters(), lr=0.1, t0=2.0, weight_decay=0.01)
    edge, cloud = Stage(split, 0, 2, told, CPU), Stage(split, 2, 3, told, CPU)
    head = LossHead("mse", None)
    for step in range(6):
        inputs, labels = batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(whole.module(inputs), labels).backward()
        optimizer.step()
        if step == 3:  # the middle block changes sides with its state
            state = block_state.deserialize(block_state.serialize(edge.block_tensors(0)))
            assert any(entry.startswith("optimizer/") for entry in state)
            block_state.check(split.blocks[0], told.optimizer, state)
            edge.move(0, 0, {})
            cloud.move(0, 3, {0: state, **{2: block_state.deserialize(block_state.serialize(cloud.block_tensors(2)))}})
        below = edge.forward(step, (inputs,), input_gradient=False)
        above = cloud.forward(step, below.outputs, input_gradient=True)
        _, gradients = head.gradient(above.outputs, labels)
        returned = cloud.backward(above, gradients)
        if edge.blocks:
            edge.backward(below, returned)
        for stage in (edge, cloud):
            stage.update(step)
    assert same(whole.module.state_dict(), split.module.state_dict())
    parameters = list(whole.module.parameters())
    kept = [value for parameter in parameters for value in optimizer.state[parameter].values()]
    assert optimizer_bytes(parameters, told.optimizer) == sum(value.nbytes for value in kept)


def test_a_planner_chooses_and_is_compared(monkeypatch):
    halves = shown("halves.py", monkeypatch).halves
    monkeypatch.setitem(PLANNERS, "halves", halves)
    monkeypatch.setitem(CONTESTANTS, "halves", lambda setting: run_held("halves", setting))
    profile, rates = small_profile(), Rates(8e6, 8e6)
    assert PLANNERS["halves"](profile, rates, SearchSpace()).deployment.cut == len(profile) // 2
    (result,) = compare(profile, Link(Trace.constant(8e6), Trace.constant(8e6)), SearchSpace(), 60.0, ("halves",))
    assert result.run is not None
    assert result.run.start.cut == len(profile) // 2
    assert not result.run.switches, "what it chose is held"


def test_a_backward_policy_trains(monkeypatch):
    monkeypatch.setitem(POLICIES, "dropping", shown("dropping.py", monkeypatch).Dropping)
    for staleness in (0, 2):
        dropped, losses = simulated(Scheme(staleness, "dropping"), recipe(), 6)
        assert len(losses) == 6
        assert not same(dropped, simulated(Scheme(staleness), recipe(), 6)[0])


def test_a_loss_trains_and_judges_its_labels(monkeypatch):
    monkeypatch.setitem(LOSSES, "huber", shown("huber.py", monkeypatch).HUBER)
    _, losses = simulated(Scheme(), recipe(loss="huber"), 2)
    inputs, labels = batch(0)
    assert losses[0] == pytest.approx(nn.functional.huber_loss(chain().module(inputs), labels).item())
