"""Is this device fit to train? Each check judges facts that it is given; `examine_device` collects them.

Each bound has its reason beside it. Knows nothing of the trainer.
"""

import ctypes
import datetime
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import shared.version
from edge_agent.config import EdgeConfig
from edge_agent.data.shared_memory import REMEDY, shared_memory_left
from edge_agent.doctor.finding import Finding, advise, fine, fix, skipped
from edge_agent.profiling.memory import available_bytes
from edge_agent.sessions.stored_session import sessions_folder
from shared.control.formatting import size
from shared.errors import ConfigError
from shared.training.device import choose_device

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 6)
LEAST_MEMORY_BYTES = 128 * 1024**2
"""Beside this very process, which has torch in memory already. Less is gone with the first batches."""
GOOD_MEMORY_BYTES = 512 * 1024**2
LEAST_DISK_BYTES = 64 * 1024**2
LEAST_SHARED_BYTES = 8 * 1024**2
GOOD_SHARED_BYTES = 256 * 1024**2
"""A container has 64 MB of it, in which two processes have no room for batches of 16 MB."""
GOOD_DISK_BYTES = 1024**3
"""A few checkpoints (`checkpoints.keep`) of a model of a hundred megabytes."""
_TIME_ERROR, _TIMEX_BYTES = 5, 512  # <sys/timex.h>; struct timex has 208 bytes, or fewer


def examine_device(config: EdgeConfig) -> list[Finding]:
    """Look at this device."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    installed = datetime.datetime.fromtimestamp(Path(shared.version.__file__).stat().st_mtime, datetime.UTC)
    return [
        check_python(sys.version_info[:3]),
        check_torch(torch.__version__, torch.version.cuda, has_gpu=Path("/dev/nvidia0").exists()),
        check_compute(config.compute.device, config.compute.threads, cores),
        check_processor(platform.machine(), processor_flags(), encrypts=config.tls.used),
        check_memory(available_bytes()),
        *([judge_shared_memory(config.data.workers, shared_memory_left())] if config.data.workers else []),
        check_disk(config),
        check_clock(datetime.datetime.now(datetime.UTC), installed, clock_is_synchronised()),
    ]


def check_python(version: Sequence[int]) -> Finding:
    """version: major, minor and more."""
    shown = ".".join(map(str, version))
    if tuple(version[:2]) < LEAST_PYTHON:
        return fix("python", shown, f"install Python {'.'.join(map(str, LEAST_PYTHON))} or newer")
    return fine("python", shown)


def check_torch(version: str, cuda: str | None, *, has_gpu: bool) -> Finding:
    """version: as torch says it, 2.13.0+cpu. cuda: the CUDA version of this build of torch; None for the CPU."""
    shown = f"{version}, for {'the CPU' if cuda is None else f'CUDA {cuda}'}"
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < LEAST_TORCH:
        return fix("torch", shown, f"install torch {'.'.join(map(str, LEAST_TORCH))} or newer")
    if has_gpu and cuda is None:
        return advise("torch", f"{shown}, beside a GPU", "install the build of torch for this GPU (see pytorch.org)")
    return fine("torch", shown)


def check_compute(device: str, threads: int, cores: int) -> Finding:
    """Find the device and threads that torch will compute with. device, threads: of the configuration. cores: that this
    process may use."""
    try:
        chosen = choose_device(device)
    except ConfigError as error:
        return fix("compute", f"{device} is not there", str(error))
    used = threads or torch.get_num_threads()
    shown = f"{chosen}, {used} thread{'s' if used > 1 else ''}, {cores} core{'s' if cores > 1 else ''}"
    if used > cores:
        return advise("compute", shown, f"set compute.threads = {cores}: more threads than cores wait for each other")
    return fine("compute", shown)


def check_processor(machine: str, flags: frozenset[str], *, encrypts: bool) -> Finding:
    """flags: extensions, by the names of /proc/cpuinfo; empty where they are not known."""
    if not flags:
        return fine("processor", f"{machine}; its extensions are not told here")
    notable = [flag for flag in ("avx512f", "avx2", "asimd", "sve", "aes") if flag in flags]
    shown = f"{machine} with {', '.join(notable) or 'no vector or AES instructions'}"
    if machine in ("x86_64", "AMD64") and "avx2" not in flags:
        return advise(
            "processor", shown, "torch is slow without AVX2: set a small deployment.cut, or use another device"
        )
    if encrypts and "aes" not in flags:
        return advise("processor", shown, "TLS takes processor time here: measure what is left with edge-agent profile")
    return fine("processor", shown)


def check_memory(available: int) -> Finding:
    """available: bytes that can be taken without swapping; sys.maxsize where that is not known."""
    if available == sys.maxsize:
        return skipped("memory", "the system does not tell how much is free")
    shown = f"{size(available)} free"
    remedy = "end other programs, or train with a smaller data.batch_size, deployment.cut or deployment.staleness"
    if available < LEAST_MEMORY_BYTES:
        return fix("memory", shown, remedy)
    return fine("memory", shown) if available >= GOOD_MEMORY_BYTES else advise("memory", shown, remedy)


def judge_shared_memory(workers: int, free: int) -> Finding:
    """Judge the room for batches that processes of `data.workers` hand over. free: bytes of /dev/shm."""
    if free == sys.maxsize:
        return skipped("shared memory", "there is no /dev/shm")
    shown = f"{size(free)} free in /dev/shm, for data.workers = {workers}"
    if free < LEAST_SHARED_BYTES:
        return fix("shared memory", shown, REMEDY)
    return fine("shared memory", shown) if free >= GOOD_SHARED_BYTES else advise("shared memory", shown, REMEDY)


def check_disk(config: EdgeConfig) -> Finding:
    """Room for checkpoints where this agent keeps its sessions."""
    try:
        folder = sessions_folder(config)
    except ConfigError as error:
        return fix("disk", "no place for checkpoints", str(error))
    if folder is None:
        return skipped("disk", 'checkpoints.location is "none": nothing is kept')
    existing = next(path for path in (folder.path, *folder.path.parents) if _can_be_seen(path))
    free = shutil.disk_usage(existing).free
    return judge_disk(folder.path, free, writable=existing.is_dir() and os.access(existing, os.W_OK))


def _can_be_seen(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # of a folder above, which is the next to be tried
        return False


def judge_disk(folder: Path, free_bytes: int, *, writable: bool) -> Finding:
    """Judge the room for checkpoints in `folder`."""
    if not writable:
        return fix("disk", f"{folder} cannot be written to", "give this user the folder, or set checkpoints.location")
    shown = f"{size(free_bytes)} free for {folder}"
    remedy = "free some, or set checkpoints.location to a larger disk; see also checkpoints.keep"
    if free_bytes < LEAST_DISK_BYTES:
        return fix("disk", shown, remedy)
    return fine("disk", shown) if free_bytes >= GOOD_DISK_BYTES else advise("disk", shown, remedy)


def check_clock(now: datetime.datetime, installed: datetime.datetime, synchronised: bool | None) -> Finding:
    """A clock that is wrong makes every certificate look expired or not yet valid.

    installed: when our own files were written, which cannot lie in the future. synchronised: None where that is not known.
    """
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    remedy = "have the clock set over the network, for example with: timedatectl set-ntp true"
    if now < installed:
        return fix("clock", f"{shown}, which is before Isthmus was installed", remedy)
    if synchronised is None:
        return fine("clock", f"{shown}; whether it is synchronised is not told here")
    return (
        fine("clock", f"{shown}, synchronised") if synchronised else advise("clock", f"{shown}, not set by NTP", remedy)
    )


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Extensions of the first core; none where the file is not there or does not say."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    listed = (line.partition(":")[2] for line in lines if line.partition(":")[0].strip() in ("flags", "Features"))
    return frozenset(next(listed, "").split())


def clock_is_synchronised() -> bool | None:
    """Ask the kernel whether its clock is kept synchronised (adjtimex(2)); None where there is no such kernel."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None:
        return None
    state = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))  # all zero: nothing is set
    return None if state < 0 else state != _TIME_ERROR
