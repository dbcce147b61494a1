"""The machine a run happens on: threads, allocator, exactness, and the fingerprint that tells two machines apart."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Any

# glibc's mallopt parameters (malloc.h)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def start(threads: int = 0) -> int:
    """Make this process fit to train: thread count, allocator, deterministic kernels. Returns the thread count."""
    import torch

    count = threads or usable_cores()
    torch.set_num_threads(count)
    keep_freed_memory()
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms(True), which imports a compiler first
    # Filling every new tensor costs a pass over memory and proves nothing here.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return count


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks instead of handing each large tensor back to the kernel and faulting it in again.

    Returns False where there is no glibc (macOS, Windows, musl): nothing is changed there and nothing breaks.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_M_MMAP_THRESHOLD: 1 << 30, _M_TRIM_THRESHOLD: (1 << 31) - 1, _M_TOP_PAD: 64 << 20}
    taken = [mallopt(parameter, value) == 1 for parameter, value in settings.items()]
    return all(taken)


def release_freed_memory() -> bool:
    """Let glibc hand freed blocks back to the kernel. Batches of different sizes leave holes between blocks: without
    this a process that predicts grows with the texts it has seen, by some 10 MB for 1,000 sentences.

    Returns False where there is no glibc, or nothing to hand back.
    """
    return platform.libc_ver()[0] == "glibc" and bool(ctypes.CDLL(None).malloc_trim(0))


def usable_cores() -> int:
    """Cores this process may use; all of the machine where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or less where a container sets a limit."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize  # a system that does not say
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.strip().isdigit() else physical


def fingerprint() -> dict[str, Any]:
    """Everything outside the recipe that changes the last bits of a result."""
    import numpy
    import torch

    return {
        "threads": torch.get_num_threads(),
        "cpu_features": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "mkl_cbwr": os.environ.get("MKL_CBWR", ""),
    }


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed between two fingerprints, a sentence each; empty where results must agree to the bit."""
    names = sorted(set(then) | set(now))
    return [f"{name} was {then.get(name)!r}, is {now.get(name)!r}" for name in names if then.get(name) != now.get(name)]
