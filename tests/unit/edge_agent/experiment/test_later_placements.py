"""Placements later than the configuration's: its rules for samples and labels hold for each of them."""

import json
from functools import cache

import pytest

from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.replacing import plan_without
from shared.errors import ConfigError
from shared.model.features import call_module
from shared.placement import Cargo, crossings, held_blocks, parse_range, unnamed_blocks
from tests.support.experiments import flags
from tests.support.placement_kinds import RANGES, SHARED, trainers_flag
from tests.support.running import edge_config

CNN = flags("cnn", "sgd", "data.batch_size=64")
WORKERS = ["edge", "near", "far", "cloud"]
TRAINERS = trainers_flag({name: f"{name}:1" for name in WORKERS}, WORKERS)
PERMITTED = 'privacy={inputs_to=["near", "far", "cloud"], gradients_to=["far", "cloud"]}'
RULES = {
    "edge": ["placement.edge=3:", "placement.near=0:1", "placement.far=1:2", "placement.cloud=2:3"],
    "cloud": ["placement.edge=0:1", "placement.near=1:2", "placement.far=2:3", "placement.cloud=3:"],
}
"""Configurations under which a worker computes the loss, and all workers have a block."""


@cache
def experiment(*more):
    """Make an experiment once, since it changes by no placement that is asked of it."""
    return Experiment(edge_config(*CNN, TRAINERS, PERMITTED, *more))


def document(ranges, **keys):
    tiles = [
        {"worker": worker, "blocks": list(parse_range(text).bounds(4))}
        for worker, texts in ranges.items()
        for text in texts
    ]
    return {"schema": "isthmus.placement/v1", "workers": WORKERS, "tiles": tiles, **keys}


LATER = {
    **{kind: document(ranges) for kind, ranges in RANGES.items()},
    "device alone": document({"edge": ["0:"]}),
    **{kind: {**shared, "workers": WORKERS} for kind, shared in SHARED.items()},
}


def label_receivers(placement):
    return {one.receiver for one in crossings(placement, unnamed_blocks(placement.blocks)) if one.cargo is Cargo.LABEL}


@pytest.mark.parametrize("kind", LATER)
@pytest.mark.parametrize("who", RULES)
def test_only_workers_that_the_configuration_permits_have_labels_under_any_later_placement(who, kind):
    free, bound = experiment(*RULES[who]), experiment(*RULES[who], f"placement.labels={who}")
    found = free.placed(LATER[kind], free.placement)
    if label_receivers(found) <= {who}:
        assert bound.placed(LATER[kind], bound.placement) == found
    else:
        with pytest.raises(ConfigError, match=r"labels would go from 'edge' to '.*'; leave the last block with "):
            bound.placed(LATER[kind], bound.placement)


def test_a_later_document_cannot_permit_labels_by_naming_a_worker():
    bound = experiment(*RULES["edge"], "placement.labels=edge")
    with pytest.raises(ConfigError, match="labels would go from 'edge' to 'near'"):
        bound.placed(document(RANGES["two workers"], labels="near"), bound.placement)


def test_a_document_that_says_less_takes_nothing_back():
    bound = experiment(*RULES["edge"], "placement.labels=edge")
    home = bound.placed(document({"edge": ["0:"]}), bound.placement)
    with pytest.raises(ConfigError, match="labels would go from 'edge' to 'near'"):
        bound.placed(document(RANGES["two workers"]), home)


def test_labels_of_a_configured_file_hold_as_those_of_the_section_do(tmp_path):
    file = tmp_path / "placement.json"
    file.write_text(json.dumps(document(RANGES["labels stay"], labels="edge")))
    bound = experiment(f"placement.file={file}")
    with pytest.raises(ConfigError, match="labels would go from 'edge' to 'near'"):
        bound.placed(document(RANGES["two workers"]), bound.placement)


def on_one_cut(tmp_path, ranges, labels):
    """Build an experiment of two workers on one cut."""
    file = tmp_path / "placement.json"
    file.write_text(json.dumps({**document(ranges, labels=labels), "workers": ["edge", "near"]}))
    return experiment(f"placement.file={file}")


@pytest.mark.parametrize(
    ("ranges", "labels", "cut", "may"),
    [
        ({"edge": ["0:"]}, "edge", 2, False),
        (RANGES["two workers"], "near", 1, True),
        (RANGES["two workers"], "near", 4, True),
    ],
    ids=["away from the device", "on the trainer", "home from the trainer"],
)
def test_a_cut_moves_where_the_labels_may_go_with_it(tmp_path, ranges, labels, cut, may):
    here = on_one_cut(tmp_path, ranges, labels)
    if may:
        assert held_blocks(here.cut_at((cut,), here.placement), "edge") == tuple(range(cut))
    else:
        with pytest.raises(ConfigError, match="labels would go from 'edge' to 'near'"):
            here.cut_at((cut,), here.placement)


@pytest.mark.parametrize(("labels", "successor"), [([], "far"), (["placement.labels=cloud"], "edge")])
def test_the_loss_goes_to_no_trainer_that_may_not_have_labels_when_another_is_left_out(labels, successor):
    here = experiment(*RULES["cloud"], *labels)
    found = plan_without(here, here.placement, ["cloud"], {"near": [], "far": [3]})
    assert held_blocks(found, successor)[-1] == 3


def test_a_trainer_can_be_left_out_while_codecs_follow_a_schedule():
    here = experiment(*RULES["cloud"], 'deployment.codec=[[0, "fp32"], [1, "uniform8"]]')
    assert held_blocks(plan_without(here, here.placement, ["near"], {"far": []}), "far") == (1, 2)


def test_a_later_document_names_no_codec_where_codecs_follow_a_schedule():
    here = experiment(*RULES["cloud"], 'deployment.codec=[[0, "fp32"], [1, "uniform8"]]')
    codecs = [{"from": "edge", "to": "near", "cargo": "feature", "codec": "fp16"}]
    with pytest.raises(ConfigError, match="follow a schedule; leave one of them out"):
        here.placed(document(RANGES["two workers"], codecs=codecs), here.placement)


def test_a_placement_is_judged_alike_while_a_forward_runs_over_copied_weights():
    """Stashing, and a replay, put copies in the place of a block's parameters; the event loop judges placements meanwhile."""
    judging = Experiment(edge_config(*flags("mlp", "sgd"), "trainer.address=127.0.0.1:1", "deployment.cut=1"))
    before, judged = judging.placement, []
    block, inputs = judging.chain.blocks[0], (judging.example.example(),)
    block.module.register_forward_pre_hook(lambda *_: judged.append(judging.cut_at([2], before)))
    call_module(block.module, inputs)
    copies = {name: value.detach().clone() for name, value in block.module.named_parameters()}
    call_module(block.module, inputs, copies)
    assert len(judged) == 2
    assert judged[0] == judged[1]
    assert Cargo.ERROR_GRADIENT in {route.cargo for route in judged[0].codecs}
