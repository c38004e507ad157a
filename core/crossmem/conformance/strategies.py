# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for handles, and for the contents and parts of memory."""

import string

from hypothesis import strategies as st

from crossmem.models import Access, ProcessIdentity, ShareableHandle

__all__ = ["contents", "handles", "identities", "names", "parts"]

_U32 = 2**32 - 1
_U64 = 2**64 - 1
_MAX_DEVICE_LENGTH = 128
_MAX_RAW_NBYTES = 512


def names() -> st.SearchStrategy[str]:
    """Return a strategy for the names of backends and mechanisms that a handle may contain."""
    rest = st.text(string.ascii_lowercase + string.digits + "_-", max_size=31)
    return st.builds(str.__add__, st.sampled_from(string.ascii_lowercase), rest)


def identities() -> st.SearchStrategy[ProcessIdentity]:
    """Return a strategy for identities of processes; most of these processes never ran."""
    return st.builds(
        ProcessIdentity,
        pid=st.integers(0, _U32),
        uid=st.integers(0, _U32),
        start_time=st.integers(0, _U64),
        boot_id=st.binary(min_size=16, max_size=16),
        pid_namespace=st.integers(0, _U64),
    )


@st.composite
def handles(draw: st.DrawFn) -> ShareableHandle:
    """Return a strategy for leased and raw handles, of whole allocations and of parts."""
    capacity = draw(st.integers(1, _U64))
    nbytes = draw(st.integers(1, capacity))
    access: Access = draw(st.sampled_from(("rw", "ro")))
    printable = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
    handle = ShareableHandle(
        backend=draw(names()),
        mechanism=draw(names()),
        device=draw(st.text(printable, min_size=1, max_size=_MAX_DEVICE_LENGTH)),
        allocation=draw(st.integers(1, _U64)),
        export=draw(st.integers(0, _U32)),
        secret=draw(st.binary(min_size=16, max_size=16)),
        owner=draw(identities()),
        nbytes=nbytes,
        capacity=capacity,
        access=access,
        raw=draw(st.none() | st.binary(max_size=_MAX_RAW_NBYTES)),
    )
    return handle.slice(*draw(parts(nbytes))) if draw(st.booleans()) else handle


@st.composite
def parts(draw: st.DrawFn, nbytes: int) -> tuple[int, int]:
    """Return a strategy for parts of memory, each as its offset and its length.

    The memory has ``nbytes`` bytes. No part is empty.
    """
    offset = draw(st.integers(0, nbytes - 1))
    return offset, draw(st.integers(1, nbytes - offset))


def contents(max_nbytes: int) -> st.SearchStrategy[bytes]:
    """Return a strategy for byte strings of length 1 to ``max_nbytes``."""
    return st.binary(min_size=1, max_size=max_nbytes)
