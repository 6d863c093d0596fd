"""A hostile peer has nothing written or removed but in the state folder, the output and the named files."""

import asyncio
import subprocess
import sys

import pytest

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.peers.claims import CLAIMS
from tests.support.peers.lying_trainer import lying_trainer, renamed, saying
from tests.support.peers.trainers import FLAGS
from tests.support.running import agent_process, running_trainer, trainer_process
from tests.support.wire import FENCE, RawPeer
from tests.support.written import Sandbox

PATHS = ["{}/precious", "../../precious", "..", "/", "~", "precious\x00", "state/../precious", ".", "-rf"]


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)


def test_the_watch_sees_what_a_process_changes(sandbox, monkeypatch):
    program = (
        "import os, pathlib, shutil, tempfile; here = pathlib.Path(os.environ['HOME']); (here / 'a').write_text('x');"
        "(here / 'a').rename(here / 'b'); (here / 'b').unlink(); (here / 'c/d').mkdir(parents=True); shutil.rmtree(here / 'c');"
        "tempfile.TemporaryFile(); os.chdir(here); os.symlink('x', 'e'); open('/dev/null', 'w'); open('/etc/hosts').close()"
    )
    with sandbox.watching(monkeypatch):
        subprocess.run([sys.executable, "-c", program], check=True)
    home = sandbox.folder / "home"
    assert sandbox.changed() >= {home / name for name in ("a", "b", "c", "c/d", "e")}
    sandbox.assert_only([home, sandbox.folder / "tmp"])
    with pytest.raises(AssertionError):
        sandbox.assert_only([home / "c"])


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["{}/precious", "../../precious", "f" * 32])
async def test_what_a_trainer_calls_a_session_names_nothing_of_the_device(sandbox, monkeypatch, name):
    name = name.format(sandbox.folder)
    async with running_trainer("checkpoints.location=none") as server, lying_trainer(server.address) as (lies, address):

        def rename(answer):
            lies.of_requests = renamed({name: answer.session_id}, request=True)
            answer.session_id = name

        lies.of_answers = saying("OpenSession", rename)
        flags = [*FLAGS, "control.listen=none", f"trainer.address={address}"]
        with sandbox.watching(monkeypatch), agent_process(*flags, output=sandbox.folder / "output") as (agent, _):
            await asyncio.to_thread(agent.wait, 120)
    assert agent.returncode == (0 if name == "f" * 32 else 8)
    sandbox.assert_only([sandbox.state / "isthmus", sandbox.folder / "output", sandbox.folder / "tmp"])
    assert (sandbox.folder / "output").exists() == (agent.returncode == 0)


@pytest.mark.slow
async def test_what_an_agent_names_is_no_path_of_the_trainer(sandbox, monkeypatch):
    kept = sandbox.folder / "kept"
    with sandbox.watching(monkeypatch), trainer_process(f"checkpoints.location={kept}", "compute.threads=1") as (_, at):
        async with RawPeer(at) as peer:
            session = await peer.open_and_join()
            for name in [path.format(sandbox.folder) for path in PATHS]:
                for method, request in (
                    ("JoinSession", pb.JoinSessionRequest(session_id=name, session_term=1)),
                    ("CloseSession", pb.CloseSessionRequest(session_id=name, fence=FENCE)),
                    ("RestoreWorker", pb.RestoreWorkerRequest(session_id=name, fence=FENCE)),
                    ("DownloadBlock", pb.DownloadBlockRequest(session_id=name, checkpoint=pb.CheckpointName())),
                ):
                    await peer.unary(method, request.SerializeToString())
            for claim in CLAIMS:
                await peer.streamed(claim.method, claim.messages(session))
            await peer.close_session(session)
    sandbox.assert_only([kept, sandbox.state / "isthmus", sandbox.folder / "tmp"])
