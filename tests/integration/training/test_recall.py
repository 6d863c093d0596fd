"""Features that are sent once: each sample's crosses in the first epoch, and later the trainer recalls it by its number."""

import asyncio
import gc
import mmap
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from benchmarks.net.relay import Fault, Relay
from cloud_trainer.sessions.worker.session_worker import SessionWorker
from edge_agent.training.events import Placed
from isthmus import run_training
from shared.errors import ConfigError, ExitCode, RefusedError
from tests.support.plain import assert_same_bits
from tests.support.plain_recalled import plain_recalled
from tests.support.running import Listening, cut_at, edge_config, running_trainer
from tests.support.samples import Pictures

pytestmark = pytest.mark.usefixtures("one_thread")

EPOCHS, WIDTH, CUT = 3, 32, 2
SAMPLES, LABEL_BYTES = 490, 8  # 16 steps an epoch, of which the last has no whole batch
RECORD_BYTES = WIDTH * 8 * 8 * 4 + LABEL_BYTES
FROZEN = ['model.frozen=["stem", "layers.0"]', 'model.frozen_mode="eval"']
FLAGS = [
    f"model.kwargs={{width={WIDTH}, blocks=2, dropout=0.2}}",
    *FROZEN,
    'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=1.0}',
    f"training.epochs={EPOCHS}",
    f"deployment.cut={CUT}",
    f'data.train={{factory="tests.integration.training.test_recall:Read", kwargs={{count={SAMPLES}}}}}',
    "data.drop_last=false",
]
RECALL = "deployment.recall=true"


class Read(Pictures):
    """Digits that count how often each is read."""

    counts: ClassVar[dict[int, int]] = {}

    def __getitem__(self, index):
        self.counts[index] = self.counts.get(index, 0) + 1
        return super().__getitem__(index)


class Noisy(Pictures):
    """Digits with noise."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + 0.1 * torch.randn(image.shape), label


class Aging(Pictures):
    """Digits that darken each time that any is read."""

    read = 0

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        self.read += 1
        return image * 0.999**self.read, label


def mixed(items):
    """Each digit with some of another one."""
    images = torch.stack([image for image, _ in items])
    return images + 0.1 * images[torch.randperm(len(items))], torch.tensor([label for _, label in items])


def centred(items):
    """Digits without the mean of their batch."""
    images = torch.stack([image for image, _ in items])
    return images - images.mean(0), torch.tensor([label for _, label in items])


def with_more_in_small_batches(items):
    """Digits with a second label in small batches."""
    images, labels = torch.stack([image for image, _ in items]), torch.tensor([label for _, label in items])
    return images, (labels, labels) if len(items) <= 16 else labels


def with_statistics():
    """A network whose statistics follow batches though nothing in their block learns."""
    stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    head = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    return nn.Sequential(OrderedDict(stem=stem, norm=nn.BatchNorm2d(4, affine=False), head=head))


def count(deployer, seen):
    """Count from here on the samples that are read, and those on which the first block is computed."""
    Read.counts.clear()
    first = deployer.experiment.chain.blocks[0].module
    first.register_forward_hook(lambda _module, inputs, _output: seen.append(len(inputs[0])))


def keeping(tmp_path):
    return f"checkpoints.location={tmp_path}"


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("codec", "staleness"), [("fp32", 0), ("uniform8", 3), pytest.param("uniform4", 0, marks=pytest.mark.slow)]
)
async def test_each_feature_is_computed_and_sent_once_and_weights_are_those_of_such_a_loop(tmp_path, codec, staleness):
    flags = [*FLAGS, f'deployment.codec="{codec}"', f"deployment.staleness={staleness}"]
    sent, seen = {}, list[int]()
    async with running_trainer(keeping(tmp_path)) as server:
        for recall in ([], [RECALL]):
            seen.clear()
            config = edge_config(*flags, *recall, f"trainer.address={server.address}")
            result = await run_training(config, Listening(session_opened=lambda deployer: count(deployer, seen)))
            sent[bool(recall)] = result.summary.bytes_up
            assert result.summary.bytes_down == 0
    assert sum(seen) == SAMPLES, "the device computes its blocks once a sample"
    assert Read.counts == dict.fromkeys(range(SAMPLES), 1), "and reads it once"
    assert sent[True] <= (1 / EPOCHS + 0.01) * sent[False]
    assert_same_bits(plain_recalled(config, {0: CUT}), result.module.state_dict())


@pytest.mark.slow
async def test_samples_that_an_epoch_leaves_out_come_in_a_later_one(tmp_path):
    flags = [*FLAGS, RECALL, "data.drop_last=true", "data.batch_size=100", 'deployment.codec="uniform8"']
    flags.append('data.test={factory="edge_agent.data:digits", kwargs={split="test"}}')  # what is evaluated is not kept
    async with running_trainer(keeping(tmp_path)) as server:
        config = edge_config(*flags, f"trainer.address={server.address}")
        result = await run_training(config)
    assert SAMPLES % 100
    assert_same_bits(plain_recalled(config, {0: CUT}), result.module.state_dict())


@pytest.mark.slow
async def test_a_moved_cut_begins_anew(tmp_path):
    begun, deployers, done = {0: CUT}, [], [0]

    def progressed(statistics):
        done.append(statistics.steps)
        if statistics.steps == 25 and deployers:
            cut_at(deployers.pop(), 1)

    def placed(event):
        begun[done[-1]] = event.deployment.edge_blocks

    async with running_trainer(keeping(tmp_path)) as server:
        config = edge_config(*FLAGS, RECALL, f"trainer.address={server.address}")
        listening = Listening(progressed, deployers.append, {Placed: placed})
        result = await run_training(config, listening)
    assert len(begun) == 2
    assert_same_bits(plain_recalled(config, begun), result.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize("fault", [Fault.DROP, Fault.CORRUPT])
async def test_a_lost_link_has_no_feature_computed_anew(tmp_path, fault):
    seen = list[int]()
    async with running_trainer(keeping(tmp_path)) as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def progressed(statistics):
                if statistics.steps in (8, 30):  # while features cross, and while none does
                    if fault is Fault.CORRUPT:
                        relay.uplink.corrupt_next(200)
                    else:
                        relay.inject(fault)

            config = edge_config(*FLAGS, RECALL, f"trainer.address={relay.address}", "link.stall_seconds=1")
            result = await run_training(config, Listening(progressed, lambda deployer: count(deployer, seen)))
    assert sum(seen) == SAMPLES
    assert_same_bits(plain_recalled(config, {0: CUT}), result.module.state_dict())


async def test_features_lie_in_the_folder_of_the_session_and_go_with_it(tmp_path):
    found = []

    def progressed(statistics):
        if statistics.steps == 25:
            found.extend(tmp_path.glob("cloud-trainer/*/recalled/features"))
            assert [path.stat().st_size for path in found] == [SAMPLES * RECORD_BYTES]
            assert [path.stat().st_mode & 0o777 for path in found] == [0o600]

    async with running_trainer(keeping(tmp_path)) as server:
        await run_training(edge_config(*FLAGS, RECALL, f"trainer.address={server.address}"), Listening(progressed))
    assert found
    assert not any(path.parent.parent.exists() for path in found)


def mapped_bytes():
    """Count the bytes of files of features that this process maps, removed ones too."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split("-", 1) for line in lines if "/recalled/features" in line]
    return sum(int(rest.split(" ", 1)[0], 16) - int(begin, 16) for begin, rest in ranges)


async def test_the_features_of_earlier_placements_take_no_memory_nor_disk(tmp_path, monkeypatch):
    """Also while nothing collects what refers to itself."""
    found, placed, deployers, kept, gone = list[int](), list[Placed](), list[object](), list[object](), asyncio.Event()
    built = SessionWorker.__init__

    def noted(self, *given, **named):
        kept.append(weakref.ref(self, lambda _ref: gone.set()))
        built(self, *given, **named)

    def progressed(statistics):
        found.append(mapped_bytes())
        if statistics.steps % 30 == 5:
            cut_at(deployers[0], 1 + statistics.steps % 60 // 30)

    monkeypatch.setattr(SessionWorker, "__init__", noted)
    gc.disable()
    try:
        async with running_trainer(keeping(tmp_path)) as server:
            config = edge_config(*FLAGS, RECALL, "training.epochs=9", f"trainer.address={server.address}")
            await run_training(config, Listening(progressed, deployers.append, {Placed: placed.append}))
            deployers.clear()
            assert len(placed) > 2
            assert SAMPLES * RECORD_BYTES <= max(found) < SAMPLES * RECORD_BYTES + mmap.PAGESIZE
            assert mapped_bytes() == 0
            async with asyncio.timeout(20):
                await gone.wait()  # and with it the weights of a closed session
    finally:
        gc.enable()


async def test_features_for_which_there_is_no_room_are_refused(tmp_path):
    needed = SAMPLES * RECORD_BYTES
    async with running_trainer(keeping(tmp_path), f"server.max_recalled_bytes={needed}") as server:
        await run_training(edge_config(*FLAGS, RECALL, "training.max_steps=2", f"trainer.address={server.address}"))
    async with running_trainer(keeping(tmp_path), f"server.max_recalled_bytes={needed - 1}") as server:
        with pytest.raises(RefusedError, match=f"would keep {needed} bytes .* gives {needed - 1} to one"):
            await run_training(edge_config(*FLAGS, RECALL, f"trainer.address={server.address}"))
    assert RefusedError.exit_code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (['model.frozen_mode="train"'], 'model.frozen_mode is "train"'),
        (['model.frozen=["stem"]'], r"block 1 \(layers.0\) learns"),
        (["deployment.cut=4", 'model.frozen=["layers.0"]'], r"block 0 \(stem\) learns.*freeze it by model.frozen$"),
        (['output.directory="results"', "output.record=true"], "output.record is true"),
        (
            ["deployment.staleness_correction=prediction", 'training.optimizer={name="adam", learning_rate=0.01}'],
            "no block learns before the features that are kept",
        ),
        (['group.name="line"'], "a group's trainers keep no features"),
        (["training.mean=token"], "features are recalled, so no labels are read to count"),
        (['data.train={factory="tests.integration.training.test_recall:Noisy"}'], "Noisy or data.collate draws random"),
        (
            ['data.train={factory="tests.integration.training.test_recall:Aging"}'],
            "Aging is not the same whenever it is",
        ),
        (['data.collate="tests.integration.training.test_recall:mixed"'], "draws random numbers"),
        (
            ['data.collate="tests.integration.training.test_recall:centred"'],
            "not the same whenever it is read, or in every",
        ),
        (
            ['data.collate="tests.integration.training.test_recall:with_more_in_small_batches"'],
            "not the same whenever it is read, or in every",
        ),
        (
            [
                'model.factory="tests.integration.training.test_recall:with_statistics"',
                "model.kwargs={}",
                'model.frozen=["stem"]',
            ],
            r"block 1 \(norm\) draws random numbers, or keeps statistics",
        ),
    ],
)
async def test_what_cannot_be_recalled_is_refused_before_anything_is_contacted(more, sentence):
    with pytest.raises(ConfigError, match=sentence):
        await run_training(edge_config(*FLAGS, RECALL, *more, "trainer.address=127.0.0.1:9"))
    assert ConfigError.exit_code is ExitCode.CONFIG


@pytest.mark.parametrize(
    "placed",
    [
        ['placement.edge=["0:1", "3:"]', 'placement.trainer=["1:3"]'],
        ['placement.edge=["0:1"]', 'placement.near=["1:2"]', 'placement.far=["2:"]'],
    ],
)
async def test_other_placements_are_refused(placed):
    trainers = [
        f'{{name="{name}", address="127.0.0.1:9"}}' for name in ("near", "far") if f"placement.{name}" in str(placed)
    ]
    given = [f"trainers=[{', '.join(trainers)}]"] if trainers else []
    flags = [flag for flag in FLAGS if not flag.startswith("deployment.cut")]
    with pytest.raises(ConfigError, match="takes one cut"):
        await run_training(edge_config(*flags, RECALL, *given, *placed))


async def test_a_trainer_without_a_folder_of_its_own_refuses():
    async with running_trainer('checkpoints.location="none"') as server:
        with pytest.raises(RefusedError, match=r"no folder of its own machine \(checkpoints.location\)"):
            await run_training(edge_config(*FLAGS, RECALL, f"trainer.address={server.address}"))
