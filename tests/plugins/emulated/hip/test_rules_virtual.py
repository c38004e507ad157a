# SPDX-License-Identifier: Apache-2.0
"""HIP-V1 to V5: virtual memory of one process. CuPy has none of these functions."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        BY_ADDRESS,
        ON_A_DEVICE,
        ON_DEVICE,
        PINNED,
        READ,
        READ_WRITE,
        Actor,
        differs,
        emulation_only,
        on,
        status,
        virtual_on_devices,
    )
else:
    from hip_actor import (
        BLOCK,
        BY_ADDRESS,
        ON_A_DEVICE,
        ON_DEVICE,
        PINNED,
        READ,
        READ_WRITE,
        Actor,
        differs,
        emulation_only,
        on,
        status,
        virtual_on_devices,
    )

    Start = Any

pytestmark = virtual_on_devices
HOST = 2
PAGE = 4096
UNCACHED = 0x40000000
KINDS = on("documented", "clr24", "clr26", "cuda")


@differs({"documented clr24 clr26": PAGE, "cuda": BLOCK})
def test_v1_granularities(exporter: Actor, code: int) -> None:
    ask = exporter.rt.memGetAllocationGranularity

    assert ask(PINNED, 1, ON_A_DEVICE, 0, 0) == code
    assert ask(PINNED, 1, ON_A_DEVICE, 0, 1) == BLOCK
    exporter.rt.memRelease(exporter.call("create", code))
    exporter.check_broken()
    assert status(ask, PINNED, 1, ON_A_DEVICE, 0, 2) == 1
    exporter.check_broken("HIP-V1")


@KINDS
def test_v1_what_can_be_made(exporter: Actor) -> None:
    create = exporter.rt.memCreate
    wrong: list[tuple[int, ...]] = [
        (0, PINNED, 1, ON_A_DEVICE, 0, 0),
        (BLOCK + 1, PINNED, 1, ON_A_DEVICE, 0, 0),
        (BLOCK, PINNED, 1, ON_A_DEVICE, 0, 1),
        (BLOCK, 0, 1, ON_A_DEVICE, 0, 0),
        (BLOCK, 2, 1, ON_A_DEVICE, 0, 0),
        (BLOCK, PINNED, 1, 0, 0, 0),
        (BLOCK, PINNED, 1, HOST, 0, 0),
    ]

    assert [status(create, *arguments) for arguments in wrong] == [1] * len(wrong)
    exporter.check_broken(*["HIP-V1"] * len(wrong))


@emulation_only
@differs({"documented clr26": 0, "clr24 cuda": 1})
def test_v1_memory_that_is_not_cached(exporter: Actor, code: int) -> None:
    rt, wanted = exporter.rt, (UNCACHED, 1, ON_A_DEVICE, 0)

    assert status(rt.memGetAllocationGranularity, *wanted, 0) == code
    assert status(rt.memCreate, BLOCK, *wanted, 0) == code
    exporter.check_broken(*["HIP-V1"] * (2 * code))
    if not code:
        handle = rt.memCreate(BLOCK, *wanted, 0)
        assert rt.memGetAllocationPropertiesFromHandle(handle) == wanted
        pointer = exporter.call("map", handle)
        exporter.write(pointer, b"data")
        assert exporter.read(pointer, 4) == b"data"


@emulation_only
@KINDS
@pytest.mark.parametrize("handle_type", [2, 4, 8, 3])
def test_v1_handles_of_other_types(exporter: Actor, handle_type: int) -> None:
    assert status(exporter.rt.memCreate, BLOCK, PINNED, handle_type, ON_A_DEVICE, 0, 0) == 801
    ask = exporter.rt.memGetAllocationGranularity
    assert status(ask, PINNED, handle_type, ON_A_DEVICE, 0, 0) == 801
    exporter.check_broken()


@differs({"documented clr24": 1, "clr26 cuda": 101})
@pytest.mark.parametrize("device", [-1, 99])
def test_v1_devices_that_there_are_not(exporter: Actor, device: int, code: int) -> None:
    assert status(exporter.rt.memCreate, BLOCK, PINNED, 1, ON_A_DEVICE, device, 0) == code
    exporter.check_broken("HIP-V1")


@KINDS
def test_v1_a_device_without_room(exporter: Actor) -> None:
    assert status(exporter.call, "create", 1 << 40) == 2
    assert status(exporter.call, "create", 1 << 62) == 2
    exporter.check_broken()


@KINDS
def test_v1_properties(exporter: Actor, two_devices: None) -> None:
    ask = exporter.rt.memGetAllocationPropertiesFromHandle

    assert ask(exporter.call("create", BLOCK, 1)) == (PINNED, 1, ON_A_DEVICE, 1)
    assert ask(exporter.call("create", BLOCK, 0, 0)) == (PINNED, 0, ON_A_DEVICE, 0)


# Addresses ------------------------------------------------------------------------------------


@emulation_only
@KINDS
def test_v2_addresses(exporter: Actor) -> None:
    reserve = exporter.rt.memAddressReserve
    first = reserve(3 * BLOCK, 0, 0, 0)
    exporter.rt.memAddressFree(first, 3 * BLOCK)

    assert reserve(BLOCK, 0, first, 0) == first
    # It is taken now, and was no more than a wish.
    assert reserve(BLOCK, 0, first, 0) not in {0, first}
    assert reserve(PAGE, 8 * BLOCK, first + BLOCK, 0) % (8 * BLOCK) == 0
    exporter.check_broken()


@KINDS
def test_v2_what_is_not_reserved(exporter: Actor) -> None:
    wrong = [
        (0, 0, 0, 0),
        (PAGE + 1, 0, 0, 0),
        (BLOCK, 3 * BLOCK, 0, 0),
        (BLOCK, 0, PAGE + 1, 0),
        (BLOCK, 0, 0, 1),
    ]

    assert [status(exporter.rt.memAddressReserve, *one) for one in wrong] == [1] * len(wrong)
    exporter.check_broken(*["HIP-V2"] * len(wrong))


@emulation_only
@KINDS
def test_v2_more_addresses_than_there_are(exporter: Actor) -> None:
    # With room for the alignment, the second one is more than C's type holds.
    for nbytes in (1 << 60, (1 << 64) - 4096):
        assert status(exporter.rt.memAddressReserve, nbytes, 0, 0, 0) == 2
    exporter.check_broken()


@KINDS
def test_v3_memory_is_where_it_was_mapped(exporter: Actor) -> None:
    handles = [exporter.call("create") for _ in range(2)]
    pointer = exporter.rt.memAddressReserve(3 * BLOCK, 0, 0, 0)
    for place, handle in ((2, handles[0]), (1, handles[1])):
        exporter.rt.memMap(pointer + place * BLOCK, BLOCK, 0, handle, 0)
    exporter.rt.memSetAccess(pointer + BLOCK, 2 * BLOCK, [(ON_A_DEVICE, 0, READ_WRITE)])
    # From the end of one mapping into the next.
    exporter.write(pointer + 2 * BLOCK - 2, b"data")
    again = exporter.call("map", handles[0])

    assert exporter.read(pointer + 2 * BLOCK - 2, 4) == b"data"
    assert exporter.read(again, 2) == b"ta"
    exporter.check_broken()
    assert status(exporter.read, pointer + BLOCK - 1, 2) == 1
    exporter.check_broken("HIP-X4")


@emulation_only
@KINDS
def test_v3_what_cannot_be_mapped(exporter: Actor, profile: str) -> None:
    handle, small = exporter.call("create", 2 * BLOCK), exporter.call("create")
    pointer = exporter.rt.memAddressReserve(4 * BLOCK, 0, 0, 0)
    exporter.rt.memMap(pointer, BLOCK, 0, small, 0)
    place = pointer + BLOCK
    wrong = [
        (0, BLOCK, 0, handle, 0),
        (place, 0, 0, handle, 0),
        (place, BLOCK, BLOCK, handle, 0),
        (place, BLOCK, 0, handle, 1),
        (place + 1, BLOCK, 0, handle, 0),
        (place, BLOCK + 1, 0, handle, 0),
        (pointer, BLOCK, 0, handle, 0),
        (place, 2 * BLOCK, 0, small, 0),
        (pointer + 3 * BLOCK, 2 * BLOCK, 0, handle, 0),
        (exporter.rt.malloc(2 * BLOCK), 2 * BLOCK, 0, handle, 0),
        (PAGE, BLOCK, 0, handle, 0),
    ]

    found = [status(exporter.rt.memMap, *one) for one in wrong]
    # On CUDA, an offset and more than the whole memory are not supported.
    assert found == [801 if profile == "cuda" and one in {2, 7} else 1 for one in range(len(wrong))]
    exporter.check_broken(*["HIP-V3"] * len(wrong))

    # The beginning of the memory alone is fine.
    exporter.rt.memMap(place, BLOCK, 0, handle, 0)
    exporter.check_broken(*["HIP-V3"] * len(wrong))


@emulation_only
@KINDS
def test_v4_what_is_mapped_is_unmapped_whole(exporter: Actor, profile: str) -> None:
    handle = exporter.call("create", 2 * BLOCK)
    pointer = exporter.rt.memAddressReserve(5 * BLOCK, 0, 0, 0)
    for place in (0, 2):
        exporter.rt.memMap(pointer + place * BLOCK, 2 * BLOCK, 0, handle, 0)
    wrong = [
        (0, BLOCK),
        (pointer, 0),
        (pointer, BLOCK),
        (pointer + BLOCK, BLOCK),
        (pointer + BLOCK, 2 * BLOCK),
        (pointer, 5 * BLOCK),
        (pointer + 4 * BLOCK, BLOCK),
        (exporter.rt.malloc(BLOCK), BLOCK),
    ]

    found = [status(exporter.rt.memUnmap, *one) for one in wrong]
    # On CUDA, addresses at which nothing is mapped are unmapped without an error.
    assert found == [0 if profile == "cuda" and one == 6 else 1 for one in range(len(wrong))]
    exporter.check_broken(*["HIP-V4"] * len(wrong))

    exporter.rt.memUnmap(pointer, 4 * BLOCK)
    exporter.rt.memAddressFree(pointer, 5 * BLOCK)
    exporter.check_broken(*["HIP-V4"] * len(wrong))


@KINDS
def test_v4_what_is_reserved_is_given_back_whole_and_empty(exporter: Actor) -> None:
    handle = exporter.call("create")
    pointer = exporter.rt.memAddressReserve(2 * BLOCK, 0, 0, 0)
    exporter.rt.memMap(pointer, BLOCK, 0, handle, 0)
    wrong = [
        (pointer, 2 * BLOCK),
        (pointer, BLOCK),
        (pointer + BLOCK, BLOCK),
        (0, 0),
        (exporter.rt.malloc(2 * BLOCK), 2 * BLOCK),
    ]

    assert [status(exporter.rt.memAddressFree, *one) for one in wrong] == [1] * len(wrong)
    exporter.check_broken(*["HIP-V4"] * len(wrong))

    exporter.rt.memUnmap(pointer, BLOCK)
    exporter.rt.memAddressFree(pointer, 2 * BLOCK)
    assert status(exporter.rt.memAddressFree, pointer, 2 * BLOCK) == 1


# Access ---------------------------------------------------------------------------------------


def copies(actor: Actor, pointer: int, own: int) -> list[int]:
    """Return the codes of reading, of writing, and of filling."""
    return [
        status(actor.rt.memcpy, own, pointer, 4, ON_DEVICE),
        status(actor.rt.memcpy, pointer, own, 4, BY_ADDRESS),
        status(actor.rt.memset, pointer, 0, 4),
    ]


@KINDS
def test_v5_nobody_has_access_until_it_is_set(exporter: Actor) -> None:
    pointer = exporter.rt.memAddressReserve(BLOCK, 0, 0, 0)
    handle, own = exporter.call("create"), exporter.rt.malloc(BLOCK)
    exporter.rt.memMap(pointer, BLOCK, 0, handle, 0)

    found = []
    for flags in (None, READ, READ_WRITE, 0):
        if flags is not None:
            exporter.rt.memSetAccess(pointer, BLOCK, [(ON_A_DEVICE, 0, flags)])
        assert exporter.rt.memGetAccess(ON_A_DEVICE, 0, pointer + 1) == (flags or 0)
        found.append(copies(exporter, pointer, own))

    assert found == [[1, 1, 1], [0, 1, 1], [0, 0, 0], [1, 1, 1]]
    exporter.check_broken(*["HIP-V5"] * 8)

    # Access is that of the mapping, not of the memory, and ends with it.
    exporter.rt.memSetAccess(pointer, BLOCK, [(ON_A_DEVICE, 0, READ_WRITE)])
    exporter.rt.memUnmap(pointer, BLOCK)
    exporter.rt.memMap(pointer, BLOCK, 0, handle, 0)
    assert exporter.rt.memGetAccess(ON_A_DEVICE, 0, pointer) == 0


@KINDS
def test_v5_each_device_has_its_access(exporter: Actor, two_devices: None) -> None:
    pointer = exporter.call("map", exporter.call("create"))
    exporter.rt.setDevice(1)
    own = exporter.rt.malloc(BLOCK)

    assert copies(exporter, pointer, own) == [1, 1, 1]
    assert status(exporter.rt.memcpyPeer, own, 1, pointer, 0, 4) == 0
    assert status(exporter.rt.memcpyPeer, own, 1, pointer, 1, 4) == 1
    exporter.rt.memSetAccess(pointer, BLOCK, [(ON_A_DEVICE, 1, READ), (ON_A_DEVICE, 0, 0)])
    assert copies(exporter, pointer, own) == [0, 1, 1]
    stream = exporter.rt.streamCreate()
    exporter.rt.setDevice(0)
    # What the stream's device may do counts, not what the current one may.
    assert status(exporter.rt.memcpyAsync, own, pointer, 4, ON_DEVICE, stream) == 0
    assert status(exporter.rt.memsetAsync, pointer, 0, 4, stream) == 1
    exporter.check_broken(*["HIP-V5"] * 7)


@emulation_only
@differs({"documented clr24 clr26": 1, "cuda": 101})
def test_v5_access_that_cannot_be_set(exporter: Actor, code: int) -> None:
    pointer = exporter.call("map", exporter.call("create", 2 * BLOCK), 2 * BLOCK)
    everything = (ON_A_DEVICE, 0, READ_WRITE)
    wrong: list[tuple[int, int, list[tuple[int, int, int]]]] = [
        (pointer, 2 * BLOCK, []),
        (pointer, 2 * BLOCK, [(HOST, 0, READ_WRITE)]),
        (pointer, 2 * BLOCK, [everything, (ON_A_DEVICE, 0, 2)]),
        (pointer, BLOCK, [everything]),
        (pointer, 3 * BLOCK, [everything]),
        (0, 2 * BLOCK, [everything]),
        (pointer, 0, [everything]),
        (exporter.rt.malloc(2 * BLOCK), 2 * BLOCK, [everything]),
    ]

    assert [status(exporter.rt.memSetAccess, *one) for one in wrong] == [1] * len(wrong)
    nobody = [(ON_A_DEVICE, 99, READ_WRITE)]
    assert status(exporter.rt.memSetAccess, pointer, 2 * BLOCK, nobody) == code
    assert status(exporter.rt.memGetAccess, ON_A_DEVICE, 99, pointer) == code
    assert status(exporter.rt.memGetAccess, HOST, 0, pointer) == 1
    assert status(exporter.rt.memGetAccess, ON_A_DEVICE, 0, PAGE) == 1
    exporter.check_broken(*["HIP-V5"] * (len(wrong) + 4))


@emulation_only
@differs({"documented clr24 clr26": 1, "cuda": 101})
def test_v5_devices_that_cannot_reach_each_other(start: Start, code: int) -> None:
    actor = start(CROSSMEM_EMULATED_HIP_PEERS=0)
    pointer = actor.call("map", actor.call("create"))
    access = [(ON_A_DEVICE, 1, READ_WRITE)]

    assert status(actor.rt.memSetAccess, pointer, BLOCK, access) == code
    actor.check_broken()


@KINDS
def test_x1_mapped_memory_is_taken_from_running_work(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    handle = actor.call("create")
    pointer = actor.call("map", handle)
    actor.rt.memset(pointer, 0, 4)
    actor.rt.deviceSynchronize()
    actor.call("unmap", pointer)
    actor.check_broken()

    pointer = actor.call("map", handle)
    actor.rt.memset(pointer, 0, 4)
    actor.call("unmap", pointer)
    actor.check_broken("HIP-X1")


@emulation_only
@KINDS
def test_x5_a_lax_emulation_shows_mapped_memory(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_STRICT=0)
    handle = actor.call("create", 2 * BLOCK)
    pointer = actor.call("map", handle, 2 * BLOCK)
    actor.write(pointer + BLOCK, b"data")
    first = actor.call("map", handle, BLOCK)
    actor.call("poke", first, b"FIRST")

    assert actor.call("peek", pointer + BLOCK, 4) == b"data"
    assert actor.read(pointer, 5) == b"FIRST"
    actor.call("unmap", first)
    actor.begin("peek", first)
    with pytest.raises((EOFError, ConnectionResetError)):
        actor.result()


@emulation_only
@on("cuda")
@pytest.mark.parametrize("mode", [0, 1])
def test_x6_what_may_wait_breaks_captures(exporter: Actor, mode: int) -> None:
    pointer = exporter.call("map", exporter.call("create"))
    stream = exporter.rt.streamCreate()
    access = [(ON_A_DEVICE, 0, READ_WRITE)]
    for call in (("memUnmap", pointer, BLOCK), ("memSetAccess", pointer, BLOCK, access)):
        exporter.rt.streamBeginCapture(stream, mode)
        name, *arguments = call
        assert status(getattr(exporter.rt, name), *arguments) == 900
        assert status(exporter.rt.streamEndCapture, stream) == 901
    exporter.check_broken("HIP-X6", "HIP-X6")
    exporter.call("unmap", pointer)
