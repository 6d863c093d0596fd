"""Each row of the list of what is refused (`docs/limits.md`): it is refused, and the sentence names the way that works."""

import re
from pathlib import Path

import pytest

from edge_agent.experiment.experiment import Experiment
from shared.errors import ConfigError, ModelError
from tests.support.models import beside
from tests.support.running import edge_config

PAGE = Path(__file__).resolve().parents[4] / "docs/limits.md"
BESIDE, KINDS = "tests.support.models.beside", "tests.support.models.kinds"
SGD = 'training.optimizer={name="sgd", learning_rate=0.05'


def model(factory, *more, loss="cross_entropy", **kwargs):
    arguments = ", ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else repr(value)}" for name, value in kwargs.items()
    )
    return [f'model.factory="{factory}"', f"model.kwargs={{{arguments}}}", f'training.loss="{loss}"', *more]


def left(leave, read=None, loss="cross_entropy"):
    given = {"leave": leave} if read is None else {"leave": leave, "read": read}
    return model(f"{BESIDE}:model", loss=loss if loss == "cross_entropy" else f"{BESIDE}:{loss}", **given)


ROWS = {
    "puts an auxiliary loss on a list, an attribute, a global or a tensor's attribute": [
        (left("on_a_list", loss="adding_the_list"), "return that as one output more"),
        (left("in_an_attribute", loss="adding_the_attribute"), "return that as one output more"),
    ],
    "reads what another block has left, its weights or its buffers": [
        (left("in_a_global", "from_a_global"), "hand it on from block to block"),
        (left("nothing", "by_others_weights"), "hand it on from block to block"),
    ],
    "remembers from batch to batch otherwise than in buffers": [
        (left("by_last_batch"), "keep in buffers what the block remembers"),
        (model(f"{KINDS}:initialised", as_buffer=False), "keep in buffers what the block remembers"),
    ],
    "draws from `random` or numpy": [(left("by_python"), "let it draw from torch's default generator")],
    "draws random numbers, or goes by an earlier call, in the loss": [
        (left("nothing", loss="drawn"), "one output more"),
        (left("nothing", loss="by_the_last_loss"), "one output more"),
    ],
    "has parameters of its own, as a loss (ArcFace)": [
        (left("nothing", loss="arc_face"), "let the model's last block have them")
    ],
    "hands complex numbers on to another worker": [
        (model(f"{BESIDE}:spectral", "deployment.cut=3"), "cannot be sent; let one worker have")
    ],
    "holds gradients back, hooks them or caches weights in the forward of the whole": [
        *(
            (model(f"{KINDS}:Declared", between=way), "another gradient .* let a block do it")
            for way in ("detach", "no_grad", "hook")
        ),
        (model(f"{KINDS}:hooked_whole"), "another gradient .* let a block do it"),
        (model(f"{KINDS}:Cached"), "another gradient .* let a block do it"),
    ],
    "ties weights by `.data`": [(model(f"{KINDS}:tied_by_memory"), "the same memory.* second.weight = first.weight")],
    "makes or resizes weights or buffers in its first forward": [
        (model(f"{KINDS}:late_buffer"), "'2.mean' as it runs .* let the factory run the module once"),
        (model(f"{KINDS}:lazy"), "let the factory run the module once"),
    ],
    "updates weights in its backward": [
        (model(f"{KINDS}:updating"), "takes the gradient of '2.weight' away .* leave the hook out")
    ],
    "merges adapters in `eval()`": [(model(f"{KINDS}:merging", first=0.1), "merge adapters afterwards")],
    (
        "has sparse gradients, with momentum, clipping, weight decay, predicted weights, "
        "or other optimizers than sgd and adagrad"
    ): [
        (
            model(f"{KINDS}:looked_up", 'training.optimizer={name="adamw"}'),
            "'2.table' is sparse.* choose one of sgd, adagrad",
        ),
        (model(f"{KINDS}:looked_up", f"{SGD}, momentum=0.9}}"), "'2.table' is sparse.* leave it out"),
        (model(f"{KINDS}:looked_up", f"{SGD}, clip_norm=1.0}}"), "'2.table' is sparse.* leave it out"),
        (
            model(f"{KINDS}:looked_up", f"{SGD}, weight_decay=0.1}}"),
            "'2.table' is sparse.* by a group of the optimizer",
        ),
        (model(f"{KINDS}:looked_up", "deployment.staleness=1"), "'2.table' is sparse.* set it to \"none\""),
    ],
    'computes forwards again in its backward (`torch.utils.checkpoint`), with `backward = "stash"`': [
        (model(f"{KINDS}:checkpointed", 'deployment.backward="stash"'), 'set it to "replay"')
    ],
    "changes its weights in its forward, with K > 0": [
        (model(f"{KINDS}:initialised", "deployment.staleness=1", as_buffer=True), "set deployment.staleness = 0"),
        (
            model(f"{KINDS}:looked_up", "deployment.staleness=1", "deployment.staleness_correction=none", max_norm=1.0),
            "set deployment.staleness = 0",
        ),
    ],
}
ELSEWHERE = {
    "changes parameters that do not learn (the weights of a teacher)": "tests/integration/training/test_teachers.py",
    "switches `requires_grad` as it trains": "tests/integration/training/test_users_modules.py",
}


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    beside.LEFT.clear()
    beside.SHARED.value, beside.SHARED.calls = None, 0


def test_the_page_lists_these_and_no_others():
    listed = re.findall(
        r"^- \*\*(.+?)\*\*", PAGE.read_text().partition("## What is refused")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert sorted(listed) == sorted([*ROWS, *ELSEWHERE])
    assert all((PAGE.parents[1] / path).exists() for path in ELSEWHERE.values())


@pytest.mark.parametrize(("flags", "said"), [case for cases in ROWS.values() for case in cases])
def test_it_is_refused_before_the_first_step_with_the_way_that_works(flags, said):
    data = ['data.train={factory="tests.support.samples:FlatDigits"}', "data.batch_size=8"]
    with pytest.raises((ModelError, ConfigError), match=said):
        Experiment(edge_config(*flags, *data))


@pytest.mark.parametrize(
    ("flags", "block", "said"),
    [
        (model(f"{KINDS}:hooked_parameters"), 2, "block '2' has hooks on its parameters, .* let one have them all"),
        (model(f"{KINDS}:looked_up"), 2, "block '2' has sparse gradients, .* let one have them all"),
        (left("nothing", loss="summed"), 5, "it is not the mean over the samples; let one worker have the last block"),
    ],
)
def test_a_division_of_the_samples_of_such_a_block_or_loss_is_refused(flags, block, said):
    data = ['data.train={factory="tests.support.samples:FlatDigits"}', "data.batch_size=8", SGD + ", momentum=0.0}"]
    experiment = Experiment(edge_config(*flags, *data))
    tiles = [
        {"worker": "edge", "blocks": [0, block]},
        *(
            {"worker": name, "blocks": [block, block + 1], "samples": rows}
            for name, rows in (("edge", [0, 4]), ("trainer", [4, 8]))
        ),
    ]
    if block + 1 < (blocks := len(experiment.chain.blocks)):
        tiles.append({"worker": "trainer", "blocks": [block + 1, blocks]})
    document = {
        "schema": "isthmus.placement/v1",
        "workers": ["edge", "trainer"],
        "tiles": tiles,
        "owners": {str(block): "edge"},
    }
    with pytest.raises(ConfigError, match=said):
        experiment.placed(document, experiment.placement)
