"""Tells glibc to keep the memory of tensors and messages instead of giving it back after each one.

A gRPC message of a megabyte is allocated several times on its way, and by default every one of those allocations is a
pair of system calls and a page fault a page. With the thresholds raised, plain protobuf messages moved 3 to 4 times as
fast on loopback (`python -m benchmarks.overhead` measures the whole). A block whose activations take megabytes needs up
to twice as long without, so a process that measures blocks calls this, too. The cost is resident memory: freed memory
stays with the process. So that it stays once, and not once a thread, all threads share one heap. A heap of a thread's
own could not keep a large tensor either: it holds 64 MiB at most, and a larger tensor would cause page faults in every step.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8  # <malloc.h>
_MIB = 1 << 20


def keep_freed_memory() -> bool:
    """Raise the thresholds of this process; called once at its start, because threads that are there keep their heaps.

    Returns whether glibc took them; elsewhere (musl, macOS) nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, 1024 * _MIB)
        and mallopt(_M_TRIM_THRESHOLD, 2047 * _MIB)
        and mallopt(_M_TOP_PAD, 64 * _MIB)
        and mallopt(_M_ARENA_MAX, 1)
    )
