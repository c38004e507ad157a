# SPDX-License-Identifier: Apache-2.0
"""A forked child keeps the pages of host memory, nothing else of its parent, and starts over."""

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

# What runs in a forked child ends in os._exit: the rest of the script is the parent's.
FORK = """
import warnings
# Newer Pythons warn where a process with threads forks; that is what is tested here.
warnings.simplefilter("ignore", DeprecationWarning)

def in_child(driver, check):
    child = os.fork()
    if not child:
        try:
            # As core does, before anything else runs in the child.
            driver.after_fork_in_child()
            check()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def no_descriptors():
    links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
             if os.path.lexists(f"/proc/self/fd/{name}")]
    assert not [link for link in links if "crossmem" in link], links

def no_memory():
    no_descriptors()
    assert mappings() == 0
"""

KEEPS_VIEWS = """
import ctypes
driver = EmulatedDriver(Options(capacity_nbytes=8 << 20))
blocks = [driver.allocate(0, 1, "memfd") for _ in range(3)]
readonly = driver.export(blocks[0], "memfd", "ro", raw=False)
exported = Exported((), (os.dup(blocks[1].reference),))
imported = driver.import_(
    0, exported, home=0, mechanism="memfd", nbytes=1, capacity=2 << 20, access="rw"
)
mapped = driver.map(imported, remappable=True)
pointer = mapped.pointer
mapped = driver.map_readonly(blocks[2])
alias = mapped.pointer
other = os.memfd_create("someone else's")
here = (descriptors(), mappings())

def check():
    no_descriptors()
    # What the parent had mapped, and its own of what it makes.
    assert mappings() == here[1]
    memory.fill(blocks[0].pointer, 1, 3)
    os.fstat(other)
    # The parent's blocks do not count here.
    own = EmulatedDriver(Options(capacity_nbytes=8 << 20))
    block = own.allocate(0, 8 << 20, "memfd")
    memory.fill(block.pointer, block.capacity, 1)
    # What the child made itself is its own until it forks too.
    assert in_child(own, no_descriptors) == 0
    memory.fill(block.pointer, block.capacity, 2)
    own.free(block)
    no_descriptors()
    assert mappings() == here[1]

assert in_child(driver, check) == 0
assert (descriptors(), mappings()) == here
try:
    driver.allocate(0, 4 << 20, "memfd")
except OutOfMemoryError:
    pass
else:
    sys.exit("the child's account reached the parent")
memory.fill(blocks[1].pointer, 1, 7)
assert ctypes.string_at(blocks[0].pointer, 1) == b"\\3"
"""

UNPROTECTED_MAPPING = """
from crossmem_emulated import forks
forks.expect()
driver = EmulatedDriver(Options())
descriptor, pointer = memory.create(2 << 20, memory.creation_flags(), is_inherited=False)
unprotected = memory._mmap(0, 2 << 20, 3, 1, descriptor, 0)
block = driver.allocate(0, 1, "memfd")
assert mappings() == 3

def check():
    no_descriptors()
    # Memory of the host stays.
    assert mappings() == 1
    memory.fill(block.pointer, 1, 1)

assert in_child(driver, check) == 0
assert mappings() == 3
"""

WHILE_THREADS_ALLOCATE = """
import threading
from crossmem_emulated import forks
is_inherited = sys.argv[1] == "host"
if not is_inherited:
    forks.expect()
flags = memory.creation_flags()
driver = EmulatedDriver(Options(granularity="page"))
stop = threading.Event()

def churn():
    while not stop.is_set():
        if is_inherited:
            block = driver.allocate(0, 1, "memfd")
            exported = driver.export(block, "memfd", "ro", raw=False)
            driver.release_export(block, exported)
            driver.free(block)
        else:
            descriptor, pointer = memory.create(4096, flags, is_inherited=False)
            memory.unmap(pointer, 4096)
            os.close(descriptor)

threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads:
    thread.start()
sys.setswitchinterval(1e-6)
def check():
    if is_inherited:
        no_descriptors()
    else:
        no_memory()
    own = EmulatedDriver(Options())
    own.free(own.allocate(0, 1, "memfd"))

try:
    codes = [in_child(driver, check) for _ in range(60)]
finally:
    stop.set()
    for thread in threads:
        thread.join()
assert not any(codes), codes
no_memory()
"""

EXEC = """
import subprocess
driver = EmulatedDriver(Options())
block = driver.allocate(0, 1, "memfd")
readonly = driver.export(block, "memfd", "ro", raw=False)
listing = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, check=True,
                         capture_output=True, text=True).stdout
assert "crossmem" not in listing, listing
"""


def test_a_child_has_no_descriptor_keeps_views_and_counts_for_itself(run: Run) -> None:
    ended = run(FORK + KEEPS_VIEWS, fresh=True)

    assert ended.returncode == 0, ended.stderr


def test_a_mapping_that_was_not_yet_protected_is_taken_away(run: Run) -> None:
    ended = run(FORK + UNPROTECTED_MAPPING, fresh=True)

    assert ended.returncode == 0, ended.stderr


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_fork_at_any_moment_of_other_threads_keeps_no_descriptor(run: Run, kind: str) -> None:
    ended = run(FORK + WHILE_THREADS_ALLOCATE, kind, fresh=True)

    assert ended.returncode == 0, ended.stderr


def test_no_descriptor_survives_exec(run: Run) -> None:
    ended = run(EXEC, fresh=True)

    assert ended.returncode == 0, ended.stderr
