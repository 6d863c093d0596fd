"""Files of weights: what torch.save, safetensors and a hub write is read; all else ends in a sentence, and runs no code."""

import argparse
import collections
import json
import zipfile
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import save_file
from torch import nn

from edge_agent.experiment.weights_file import read_weights
from shared.errors import ConfigError
from tests.support.plain import assert_same_bits


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


STATE = network().state_dict()


def refused(path, key=None):
    """The sentence of a refusal."""
    with pytest.raises(ConfigError) as refusal:
        read_weights(path, key)
    sentence = str(refusal.value)
    assert "\n" not in sentence
    assert len(sentence) < 500
    return sentence


def assert_read(path):
    assert_same_bits(STATE, dict(read_weights(path).tensors))


SAVED = {
    "a state dict": STATE,
    "state_dict": {"state_dict": STATE, "epoch": 3, "optimizer": {"state": {}}},
    "model": {"model": STATE, "step": 7},
    "model_state_dict": {"epoch": 1, "model_state_dict": STATE},
    "parameters": {name: nn.Parameter(value, value.is_floating_point()) for name, value in STATE.items()},
}


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", ["begin.pth", "begin.pt", "begin.bin", "begin"])
def test_what_torch_has_saved_is_read_whatever_its_name(tmp_path, kind, old, name):
    torch.save(SAVED[kind], tmp_path / name, _use_new_zipfile_serialization=not old)
    assert_read(tmp_path / name)


AVERAGED = {name: value + 1 for name, value in STATE.items()}
SEVERAL = {"ema": AVERAGED, "model": STATE, "optimizer": {"state": {}}, "nested": {"state_dict": AVERAGED}}


@pytest.mark.parametrize(
    ("key", "state", "entry", "others"),
    [
        (None, STATE, "model", ("ema",)),
        ("model", STATE, "model", ()),
        ("ema", AVERAGED, "ema", ()),
        ("nested", AVERAGED, "nested.state_dict", ()),
    ],
)
def test_of_several_state_dicts_the_key_chooses_and_the_others_are_told(tmp_path, key, state, entry, others):
    torch.save(SEVERAL, tmp_path / "x.pth")
    weights = read_weights(tmp_path / "x.pth", key)
    assert_same_bits(state, dict(weights.tensors))
    assert (weights.entry, weights.others) == (entry, others)


@pytest.mark.parametrize("kind", SAVED)
def test_a_file_of_one_state_dict_has_no_others(tmp_path, kind):
    torch.save(SAVED[kind], tmp_path / "x.pth")
    assert read_weights(tmp_path / "x.pth").others == ()


def test_an_entry_that_is_not_there_is_said(tmp_path):
    torch.save(SEVERAL, tmp_path / "x.pth")
    assert "has no entry 'average': its keys are 'ema' and 'model' and 'optimizer'" in refused(
        tmp_path / "x.pth", "average"
    )
    assert "has no state dict: its keys are 'state', and none of" in refused(tmp_path / "x.pth", "optimizer")
    save_file(STATE, tmp_path / "x.safetensors")
    assert "has no entry 'ema', as a checkpoint of torch.save has" in refused(tmp_path / "x.safetensors", "ema")


def test_a_checkpoint_without_a_usual_entry_names_the_key_that_chooses(tmp_path):
    torch.save({"ema": STATE, "step": 3}, tmp_path / "x.pth")
    assert refused(tmp_path / "x.pth").endswith("save a state dict alone, or name its entry in training.start_from.key")
    assert read_weights(tmp_path / "x.pth", "ema").entry == "ema"


@pytest.mark.parametrize("padding", range(0, 1024, 8))
def test_a_safetensors_file_is_known_whatever_the_length_of_its_head(tmp_path, padding):
    """A head of 640 bytes begins the file as the old format of torch.save begins."""
    save_file(STATE, tmp_path / "begin.safetensors", metadata={"": "x" * padding})
    assert_read(tmp_path / "begin.safetensors")


def test_the_digest_is_that_of_the_bytes_of_the_file(tmp_path):
    path = tmp_path / "begin.safetensors"
    save_file(STATE, path)
    assert read_weights(path).digest == xxhash.xxh3_128_hexdigest(path.read_bytes())


def sharded(folder, save=save_file, suffix="safetensors", index="model.safetensors.index.json"):
    """Write the state in two shards and an index, as a hub has it; returns the index."""
    folder.mkdir(exist_ok=True)
    names = list(STATE)
    shards = {f"model-{number}-of-2.{suffix}": names[number - 1 :: 2] for number in (1, 2)}
    for shard, held in shards.items():
        save({name: STATE[name] for name in held}, folder / shard)
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return folder / index


def test_the_shards_of_an_index_are_one_file_by_the_index_or_the_folder(tmp_path):
    index = sharded(tmp_path)
    assert_read(index)
    assert_read(tmp_path)
    assert read_weights(index).digest == read_weights(tmp_path).digest
    before = read_weights(index).digest
    save_file({name: value + 1 for name, value in STATE.items()}, tmp_path / "model-2-of-2.safetensors")
    assert read_weights(index).digest != before


def test_shards_that_torch_has_saved_are_read_too(tmp_path):
    sharded(tmp_path, torch.save, "bin", "pytorch_model.bin.index.json")
    assert_read(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_with_one_file_is_that_file(tmp_path, name):
    (save_file if name.endswith("tensors") else torch.save)(STATE, tmp_path / name)
    assert_read(tmp_path)


def test_a_folder_without_weights_says_which_names_it_looked_for(tmp_path):
    assert refused(tmp_path) == (
        f"{tmp_path} has none of model.safetensors, model.safetensors.index.json, pytorch_model.bin and "
        "pytorch_model.bin.index.json"
    )


def rewritten(index, **changes):
    index.write_text(json.dumps({**json.loads(index.read_text()), **changes}))


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        (
            {"0.weight": "../model-1-of-2.safetensors"},
            "shard '../model-1-of-2.safetensors', which is no file beside it",
        ),
        ({"0.weight": "/etc/passwd"}, "names the shard '/etc/passwd', which is no file beside it"),
        ({"0.weight": ".."}, "cannot be read: Is a directory"),
        ({"0.weight": "absent"}, "absent cannot be read: No such file or directory"),
        ({"absent": "model-1-of-2.safetensors"}, "says that 'absent' is in model-1-of-2.safetensors, where it is not"),
        ({"0.weight": 1}, "is no index of shards"),
        ({}, "is no index of shards"),
        ([], "is no index of shards"),
    ],
)
def test_an_index_that_is_none(tmp_path, weight_map, said):
    index = sharded(tmp_path)
    rewritten(index, weight_map=weight_map)
    assert said in refused(index)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1", "{}", "\x00"])
def test_an_index_that_is_no_json(tmp_path, text):
    (tmp_path / "x.index.json").write_text(text)
    assert "is no index of shards" in refused(tmp_path / "x.index.json")


def test_a_shard_is_never_an_index_of_its_own(tmp_path):
    index = sharded(tmp_path)
    rewritten(index, weight_map={"0.weight": index.name})
    assert "is neither a safetensors file nor one of torch.save" in refused(index)


class Runs:
    """A pickled object that would run code where it is read."""

    def __reduce__(self):
        return (exec, ("raise SystemExit(99)",))


PICKLED = {
    "torch.nn.modules.container.Sequential": network(),
    "argparse.Namespace": {"args": argparse.Namespace(rate=1), "state_dict": STATE},
    "numpy": {"accuracy": np.float64(0.5), "state_dict": STATE},
    "exec": {"state_dict": Runs()},
}


@pytest.mark.parametrize("named", PICKLED)
@pytest.mark.parametrize("old", [False, True])
def test_pickled_objects_are_named_and_never_made(tmp_path, named, old):
    torch.save(PICKLED[named], tmp_path / "x.pth", _use_new_zipfile_serialization=not old)
    sentence = refused(tmp_path / "x.pth")
    assert named in sentence
    assert "could run code as it is read; if you trust it, convert it once by torch.save(" in sentence
    assert sentence.endswith('["state_dict"], new_path), or with .state_dict() if it is a whole module')


NO_STATE = {
    "its keys are 'epoch' and 'optimizer'": {"epoch": 1, "optimizer": {}},
    "it holds a list": [torch.zeros(1)],
    "it holds a Tensor": torch.zeros(1),
    "'epoch' is a int": {"0.weight": torch.zeros(1), "epoch": 1},
    "'state_dict.x' is a list": {"state_dict": {"x": [1], "y": torch.zeros(1)}},
    "it is empty": {},
    "'w' is sparse": {"w": torch.eye(2).to_sparse()},
    "'w' is on the device meta": {"w": torch.empty(2, device="meta")},
    "a name is no text": {1: torch.zeros(1)},
}


@pytest.mark.parametrize("said", NO_STATE)
def test_what_is_no_state_dict_is_said(tmp_path, said):
    torch.save(NO_STATE[said], tmp_path / "x.pth")
    assert said in refused(tmp_path / "x.pth")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_torn_file_of_torch(tmp_path, old, part):
    whole, torn = tmp_path / "whole.pth", tmp_path / "torn.pth"
    torch.save(STATE, whole, _use_new_zipfile_serialization=not old)
    data = whole.read_bytes()
    torn.write_bytes(data[: int(len(data) * part)])
    assert "cannot be read as a file of torch.save" in refused(torn)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.999])
def test_a_torn_safetensors_file(tmp_path, part):
    save_file(STATE, tmp_path / "x.safetensors")
    data = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(data[: int(len(data) * part)])
    assert "is neither a safetensors file nor one of torch.save" in refused(tmp_path / "x.safetensors")


class Claims:
    """A tensor that claims more elements than its storage has."""

    def __init__(self, count, stride=1):
        self.count, self.stride = count, stride

    def __reduce__(self):
        storage = torch.storage.TypedStorage(
            wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True
        )
        return (
            resolve_name("torch._utils:_rebuild_tensor_v2"),
            (storage, 0, (self.count,), (self.stride,), False, collections.OrderedDict()),
        )


@pytest.mark.parametrize("old", [False, True])
def test_a_tensor_that_claims_more_than_its_storage_has(tmp_path, old):
    torch.save({"w": Claims(2**45)}, tmp_path / "x.pth", _use_new_zipfile_serialization=not old)
    assert "cannot be read as a file of torch.save" in refused(tmp_path / "x.pth")


def test_one_number_that_claims_to_be_many_takes_no_memory(tmp_path):
    torch.save({"w": Claims(2**45, 0)}, tmp_path / "x.pth")
    assert read_weights(tmp_path / "x.pth").tensors["w"].shape == (2**45,)


def test_an_archive_that_is_compressed_or_says_more_than_it_has(tmp_path):
    torch.save(STATE, tmp_path / "x.pth")
    with (
        zipfile.ZipFile(tmp_path / "x.pth") as read,
        zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for entry in read.infolist():
            bomb.writestr(entry.filename, read.read(entry))
        bomb.writestr("archive/data/9", b"0" * 10_000_000)
    assert "it is compressed" in refused(tmp_path / "bomb.pth")


def test_a_safetensors_file_that_claims_more_than_it_has(tmp_path):
    head = json.dumps({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "x").write_bytes(len(head).to_bytes(8, "little") + head)
    assert "is neither a safetensors file nor one of torch.save" in refused(tmp_path / "x")


def test_what_is_no_file_of_weights(tmp_path):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "pointer").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    assert "is neither a safetensors file nor one of torch.save" in refused(tmp_path / "text")
    assert "pointer is a pointer of Git LFS; `git lfs pull` fetches the weights" in refused(tmp_path / "pointer")
    assert refused(tmp_path / "absent") == f"{tmp_path / 'absent'} cannot be read: No such file or directory"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_program_is_no_file_of_weights(tmp_path):
    torch.jit.script(nn.Linear(1, 1)).save(tmp_path / "x.pt")
    assert "cannot be read as a file of torch.save" in refused(tmp_path / "x.pt")
