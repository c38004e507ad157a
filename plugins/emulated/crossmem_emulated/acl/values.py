# SPDX-License-Identifier: Apache-2.0
"""The calls by which streams write values into memory or wait for values in memory (ACL-E44)."""

from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.copies import side_of
from crossmem_emulated.acl.host import is_registered
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.streams import find_stream
from crossmem_emulated.queues import Work
from crossmem_emulated.words import Comparison, finish_later, is_satisfied, load, store, waiting

__all__: list[str] = []

_NBYTES: Final = 8
_RULE: Final = "ACL-E44"


def _place_of(process: AclProcess, pointer: int) -> int:
    """Return the address at which the emulation accesses the program's word at ``pointer``.

    Refuse an address that streams cannot access. Refuse every address if, according to the profile,
    streams cannot write words or wait for them.
    """
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    if not process.profile.stream_values:
        text = "streams of this product or edition cannot write values or wait for them"
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)
    process.current()
    if pointer % _NBYTES:
        raise Refused(
            Code.RT_PARAM_INVALID, f"the address {pointer:#x} must be a multiple of 8", _RULE
        )
    side = side_of(process, pointer, _NBYTES)
    if not side.origins and not is_registered(process, pointer):
        text = f"{pointer:#x} is neither device memory nor registered host memory"
        raise Refused(Code.RT_PARAM_INVALID, text, _RULE)
    return side.parts[0][0]


@entry("rt.value_write", "kkIk")
def _value_write(process: AclProcess, pointer: int, value: int, flag: int, handle: int) -> None:
    place = _place_of(process, pointer)
    # The published drivers ignore the flag.
    if flag and process.profile.is_documented:
        raise Refused(Code.RT_PARAM_INVALID, f"the flag must be 0, not {flag}", _RULE)
    stream = find_stream(process, handle)
    ranges = ((pointer, _NBYTES),)
    work = Work("rt.value_write", ranges, lambda: store(place, _NBYTES, value))
    process.queues.submit(stream, work)
    if process.is_slow:
        finish_later(process.lock, lambda: process.finish(stream, until=work.sequence))


@entry("rt.value_wait", "kkIk")
def _value_wait(process: AclProcess, pointer: int, value: int, flag: int, handle: int) -> None:
    place = _place_of(process, pointer)
    if flag not in set(Comparison):
        raise Refused(Code.RT_PARAM_INVALID, f"there is no condition {flag}", _RULE)
    comparison, stream = Comparison(flag), find_stream(process, handle)

    def is_over() -> bool:
        return is_satisfied(comparison, load(place, _NBYTES), value, nbytes=_NBYTES)

    word = (pointer, _NBYTES)
    process.queues.submit(stream, waiting("rt.value_wait", stream, process.lock, word, is_over))
