"""All threads of a process share one heap of glibc's.

In any other heap a tensor of 32 MiB or more is asked of the kernel and given back to it in every step, which costs a page fault
for every 4 KiB of it.
"""

import subprocess
import sys

import pytest

AGENT = """
import asyncio
from isthmus import run_training
from tests.support.experiments import flags
from tests.support.running import Listening, edge_config

counted = []
asyncio.run(run_training(edge_config(*flags("mlp", "sgd"), "trainers=[]"), Listening(lambda _: counted.append(heaps()))))
print(max(counted))
"""
FUNCTION = """
from isthmus import train
from tests.support.experiments import flags
from tests.support.running import edge_config

counted = []
train(edge_config(*flags("mlp", "sgd"), "trainers=[]"), on_progress=lambda _: counted.append(heaps()))
print(max(counted))
"""
TRAINER = """
import asyncio
from cloud_trainer.server import TrainerServer
from tests.support.running import trainer_config

async def serve():
    server = TrainerServer(trainer_config())
    await server.start()
    print(heaps())
    await server.stop()

asyncio.run(serve())
"""
MEASURING = """
import asyncio
from edge_agent.profiling.latency_table import measure_table
from tests.support.experiments import flags
from tests.support.running import edge_config

config = edge_config(*flags("mlp", "sgd"), "trainers=[]")
asyncio.run(measure_table(config, repeats=1))
print(heaps())
"""
HEAPS = """
import ctypes, os, tempfile

def heaps():
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    with tempfile.TemporaryFile() as said:
        stream = ctypes.c_void_p(libc.fdopen(os.dup(said.fileno()), b"w"))
        assert libc.malloc_info(0, stream) == 0
        libc.fclose(stream)
        said.seek(0)
        return said.read().count(b"<heap nr=")
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="another allocator")
@pytest.mark.parametrize(
    "process",
    [
        pytest.param(AGENT, id="agent"),
        pytest.param(FUNCTION, id="function", marks=pytest.mark.full),
        pytest.param(MEASURING, id="measuring", marks=pytest.mark.full),
        pytest.param(TRAINER, id="trainer"),
    ],
)
def test_all_threads_share_one_heap(process):
    done = subprocess.run(
        [sys.executable, "-c", HEAPS + process], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == 1
