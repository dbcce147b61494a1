"""Proven here: `start` makes a process fit to train, freed memory is kept where there is glibc and nothing breaks where
there is none, and a fingerprint can be stored, read back and compared in sentences.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv import runtime

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="allocator settings are glibc's")


def in_a_fresh_process(code: str, **environment: str) -> Any:
    """What the code prints, read as JSON. `start` changes a whole process, so it never runs in that of the tests."""
    variables = {**os.environ, "PYTHONPATH": str(Path(qkv.__file__).parents[1]), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


STATE = """
import json, os, torch
from qkv import runtime

def state(count):
    switches = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    threads = count, torch.get_num_threads(), runtime.fingerprint()["threads"]
    return [*threads, *switches, torch.utils.deterministic.fill_uninitialized_memory]

states = [state(0), state(runtime.start(3)), state(runtime.start())]
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
states.append(state(runtime.start()))
print(json.dumps(states))
"""


def test_start_sets_threads_and_exactness() -> None:
    """Also where the environment says otherwise: torchrun sets OMP_NUM_THREADS to 1."""
    cores = len(os.sched_getaffinity(0))
    untouched, three, every, bound = in_a_fresh_process(STATE, OMP_NUM_THREADS="1")
    assert untouched == [0, 1, 1, False, False, True]
    assert three == [3, 3, 3, True, False, False]
    assert every == [cores, cores, cores, True, False, False]
    assert bound == [1, 1, 1, True, False, False]  # only the cores a process is bound to are its own


# Memory

RESIDENT = """
import json, resource, torch
from qkv import runtime

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

{call}
before = resident()
block = torch.ones(2**26)  # 256 MiB, more than the padding that is kept in any case
during = resident()
del block
print(json.dumps([during - before, resident() - before, runtime.keep_freed_memory()]))
"""


@GLIBC
def test_freed_memory_is_kept_after_start() -> None:
    during, after, answer = in_a_fresh_process(RESIDENT.replace("{call}", "runtime.start(1)"))
    assert during > 200
    assert after > 200
    assert answer is True


@GLIBC
def test_freed_memory_would_not_be_kept_otherwise() -> None:
    """The control: without it the test above proves nothing."""
    during, after, _ = in_a_fresh_process(RESIDENT.replace("{call}", ""))
    assert during > 200
    assert after < 50


def test_without_glibc_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("no library may be opened here")

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", forbidden)
    assert runtime.keep_freed_memory() is False


def test_a_refused_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, _: None) -> None:
            self.mallopt = lambda parameter, value: 0

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))
    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert runtime.keep_freed_memory() is False


def test_memory_is_that_of_the_machine() -> None:
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    assert runtime.memory_bytes() == page * pages
    assert 2**27 < runtime.memory_bytes() < 2**50


# Fingerprint


def test_a_fingerprint_has_what_changes_the_last_bits() -> None:
    print_ = runtime.fingerprint()
    names = ["threads", "cpu_features", "machine", "system", "python", "torch", "numpy", "mkl_cbwr"]
    assert list(print_) == names
    assert print_["threads"] == torch.get_num_threads()
    assert print_["torch"] == torch.__version__
    assert print_["python"] == platform.python_version()
    assert all(type(value) in (int, str) for value in print_.values())


def test_a_fingerprint_is_the_same_twice_and_after_storing() -> None:
    first, second = runtime.fingerprint(), runtime.fingerprint()
    assert first == second
    assert json.loads(json.dumps(first)) == first
    assert runtime.differences(first, json.loads(json.dumps(second))) == []


def test_a_fingerprint_shows_the_settings_that_matter() -> None:
    code = "import json\nfrom qkv import runtime\nprint(json.dumps(runtime.fingerprint()))"
    there = in_a_fresh_process(code, MKL_CBWR="COMPATIBLE", ATEN_CPU_CAPABILITY="default", OMP_NUM_THREADS="1")
    assert there["threads"] == 1
    assert there["cpu_features"] == "DEFAULT"
    here = {**runtime.fingerprint(), "threads": 1, "cpu_features": "DEFAULT", "mkl_cbwr": ""}
    assert runtime.differences(here, there) == ["mkl_cbwr was '', is 'COMPATIBLE'"]


def test_differences_are_sentences() -> None:
    then = {"threads": 2, "torch": "2.13.0", "gone": "x", "same": 1}
    now = {"threads": 4, "torch": "2.14.0", "same": 1, "new": ""}
    assert runtime.differences(then, now) == [
        "gone was 'x', is None",
        "new was None, is ''",
        "threads was 2, is 4",
        "torch was '2.13.0', is '2.14.0'",
    ]
    assert runtime.differences(then, then) == []


def test_freed_memory_is_handed_back_where_there_is_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import json
from pathlib import Path
from qkv import runtime
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
blocks = [bytes(50_000) for _ in range(2000)]  # below the size that is mapped on its own
kept, full = blocks[::2], resident()
last = blocks[-1]
del blocks
kept = kept[:1]
before = resident()
done = runtime.release_freed_memory()
print(json.dumps([done, full, before, resident()]))
"""
    if platform.libc_ver()[0] == "glibc":
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        done, full, _, after = json.loads(ended.stdout)
        assert done is True
        assert after < full - 50_000_000
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert runtime.release_freed_memory() is False
