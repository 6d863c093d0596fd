"""Factories by name: permitted imports, and the sentences for failed ones."""

import threading

import grpc
import pytest

from shared.errors import DataError, ModelError, NotAllowedError
from shared.factory import load_factory
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.running import running_trainer
from tests.support.wire import RawPeer, open_request


def test_a_module_that_raises_is_said_to_and_not_thrown_at_the_user(tmp_path, monkeypatch):
    (tmp_path / "broken_syntax.py").write_text("def f(:\n")
    (tmp_path / "broken_inside.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="'broken_syntax' cannot be imported: SyntaxError"):
        load_factory("broken_syntax:f")
    with pytest.raises(DataError, match="'broken_inside' cannot be imported: ZeroDivisionError"):
        load_factory("broken_inside:f", error=DataError)


@pytest.mark.parametrize("name", ["no dot", "absent_module:f", "math:nothing", "os:system"])
def test_a_refusal_begins_with_the_key_that_asks_for_it(name):
    with pytest.raises(ModelError) as without:
        load_factory(name, allowed=["absent_module", "math"])
    with pytest.raises(type(without.value)) as refused:
        load_factory(name, key="training.schedule", allowed=["absent_module", "math"])
    assert str(refused.value) == f"training.schedule: {without.value}"


def test_a_module_that_is_nowhere_comes_with_where_to_look(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import absent_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, package in (("mynet:net", "mynet"), ("mine.nets:net", "mine")):
        with pytest.raises(ModelError, match=f"PYTHONPATH must name the folder that holds {package}.py or the package"):
            load_factory(name)
    with pytest.raises(ModelError, match="shared is a package of Isthmus here, so give yours another name"):
        load_factory("shared.mynet:net")
    with pytest.raises(ModelError, match="No module named 'absent_library'") as refused:
        load_factory("needs_more:net")
    assert "PYTHONPATH" not in str(refused.value), "it was found; what it imports has to be installed"


def test_nothing_is_imported_that_is_not_allowed(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("loud:f", "allowed_too:f", "shared.model.zooo:mlp"):
        with pytest.raises(NotAllowedError, match=r"models\.allowed"):
            load_factory(name, allowed=["allowed", "shared.model.zoo"])
    assert load_factory("shared.model.zoo:mlp", allowed=["shared.model.zoo"])


HELPER = (
    "import subprocess\nfrom subprocess import run, Popen\nfrom torch import nn\nshell = Popen\nready = nn.ReLU()\n"
)
OWN = "def make(): return nn.Linear(1, 1)\nclass Net(nn.Linear): ...\ndef _hidden(): ...\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package `lent` whose module imports names that could run anything, and whose __main__ ends the process
    that imports it."""
    folder = tmp_path / "lent"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "vision.py").write_text(HELPER + OWN)
    (folder / "more.py").write_text("from lent.vision import make\n")
    (folder / "__main__.py").write_text("raise SystemExit(2)\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_package_lends_what_it_defines_and_not_what_it_imports():
    for name in ("lent.vision:make", "lent.vision:Net", "lent.more:make"):
        assert callable(load_factory(name, allowed=["lent"]))
    for name in ("lent.vision:run", "lent.vision:Popen", "lent.vision:shell"):
        with pytest.raises(
            NotAllowedError, match=f"'{name}' is not allowed .*'lent.vision' merely imports it from 'subprocess'"
        ):
            load_factory(name, allowed=["lent"])
    sentence = (
        "'lent.vision:ready' is not allowed .*: it is an object whose class ReLU is of 'torch.nn.modules.activation'"
    )
    with pytest.raises(NotAllowedError, match=sentence):
        load_factory("lent.vision:ready", allowed=["lent"])
    with pytest.raises(
        NotAllowedError, match="a package lends neither __main__ nor names that begin with an underscore"
    ):
        load_factory("lent.vision:_hidden", allowed=["lent"])
    with pytest.raises(NotAllowedError, match=r"merely imports it from 'lent\.vision'"):
        load_factory("lent.more:make", allowed=["lent.more"])


@pytest.mark.usefixtures("package")
def test_an_exact_factory_is_allowed_alone():
    assert load_factory("lent.vision:make", allowed=["lent.vision:make"]).__name__ == "make"
    for name in ("lent.vision:Net", "lent.vision:run", "lent.vision.make:x", "lent.more:make"):
        with pytest.raises(NotAllowedError, match=r"allowed are lent\.vision:make$"):
            load_factory(name, allowed=["lent.vision:make"])


@pytest.mark.usefixtures("package")
def test_a_module_that_acts_on_import_is_not_imported_for_a_peer():
    with pytest.raises(NotAllowedError, match="a package lends neither __main__"):
        load_factory("lent.__main__:make", allowed=["lent"])


@pytest.mark.parametrize(
    "end", ["SystemExit(2)", "KeyboardInterrupt", "GeneratorExit", "__import__('asyncio').CancelledError()"]
)
def test_whatever_an_import_raises_is_a_refusal(tmp_path, monkeypatch, end):
    name = f"ends_with_{abs(hash(end))}"
    (tmp_path / f"{name}.py").write_text(f"raise {end}\n")
    monkeypatch.syspath_prepend(tmp_path)
    raised = []

    def load():
        try:
            load_factory(f"{name}:f", allowed=[name])
        except BaseException as failure:
            raised.append(failure)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    (failure,) = raised
    assert isinstance(failure, ModelError)
    assert f"{name}.py, line 1" in str(failure)


def test_the_root_cause_of_an_import_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "outermost.py").write_text(
        "try:\n    import between_them\nexcept Exception as cause:\n    raise RuntimeError('look up') from cause\n"
    )
    (tmp_path / "between_them.py").write_text("\nimport no_such_thing_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    root = r"No module named 'no_such_thing_at_all' \(between_them.py, line 2\)"
    with pytest.raises(ModelError, match="RuntimeError: look up, because of ModuleNotFoundError: " + root):
        load_factory("outermost:f")


@pytest.mark.parametrize(
    "model",
    [
        "raise SystemExit(2)",
        "def make(): raise SystemExit(2)",
        """
from torch import nn
class Ending(nn.Linear):
    def forward(self, value): raise SystemExit(2)
def make(): return nn.Sequential(Ending(64, 64), nn.Linear(64, 10))
""",
        """
from torch import nn
class Ending(nn.Sequential):
    def blocks(self): raise SystemExit(2)
def make(): return Ending(nn.Linear(64, 64), nn.Linear(64, 10))
""",
    ],
    ids=["import", "factory", "forward", "blocks"],
)
async def test_a_model_that_raises_system_exit_does_not_end_the_trainer(tmp_path, monkeypatch, request, model):
    name = f"ends_the_process_at_{request.node.callspec.id}"
    (tmp_path / f"{name}.py").write_text(model)
    monkeypatch.syspath_prepend(tmp_path)
    async with (
        running_trainer(f'models.allowed=["{name}", "shared.model.zoo"]') as server,
        RawPeer(server.address) as peer,
    ):
        request = open_request(model=pb.Model(factory=f"{name}:make", kwargs_json="{}"))
        end = await peer.unary("OpenSession", request.SerializeToString())
        assert end.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "SystemExit: 2" in end.details
        assert await peer.open(), "the trainer serves on"
