# SPDX-License-Identifier: Apache-2.0
"""The objects that describe queues and routes: attributes, routes, lists of routes, and queries."""

import ctypes
from dataclasses import dataclass
from typing import Final, TypeVar

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.programs import read, write
from crossmem_emulated.acl.tdt.state import LONGEST_NAME, QueueAttr, Route

__all__ = ["RouteQuery", "find_object"]

_NAME, _DEPTH = 0, 1
_POINTER_NBYTES: Final = 8
_NUMBER_NBYTES: Final = 4
_SOURCE, _TARGET, _STATUS = 0, 1, 2
_Object = TypeVar("_Object")


@dataclass(slots=True, eq=False)
class RouteQuery:
    """A description of the routes that a program queries. A field that is not set is None."""

    mode: int | None = None
    source: int | None = None
    target: int | None = None


def find_object(process: AclProcess, handle: int, kind: type[_Object]) -> _Object:
    """Return the object of type ``kind`` that a handle names. Refuse an invalid handle."""
    if not handle:
        raise Refused(Code.INVALID_PARAM, f"the {kind.__name__} is null")
    found = process.tdt.objects.get(handle)
    if not isinstance(found, kind):
        text = f"there is no {kind.__name__} {handle:#x}, or it was destroyed"
        raise Refused(Code.INVALID_PARAM, text, "ACL-Q39")
    return found


def _create(process: AclProcess, made: object) -> int:
    handle = next(process.handles)
    process.tdt.objects[handle] = made
    return handle


def _destroy(process: AclProcess, handle: int, kind: type) -> None:
    find_object(process, handle, kind)
    del process.tdt.objects[handle]


def _check_parameter(kind: int, nbytes: int, pointer: int, sizes: dict[int, int]) -> None:
    """Refuse to set a parameter if its type, its size or the address of its value is invalid."""
    if kind not in sizes or not pointer or not 0 < nbytes <= sizes[kind]:
        text = f"type {kind}, size {nbytes} or address {pointer:#x} of the parameter is invalid"
        raise Refused(Code.INVALID_PARAM, text)


def _check_room(kind: int, nbytes: int, pointer: int, sizes: dict[int, int]) -> None:
    """Refuse to write a parameter into the caller's memory if the parameter's type is unknown.

    Also refuse if the address of that memory is null, or if the memory is too small.
    """
    if kind not in sizes or not pointer or nbytes < sizes[kind]:
        text = f"a parameter of type {kind} cannot be written into {nbytes} bytes at {pointer:#x}"
        raise Refused(Code.INVALID_PARAM, text)


def _number(process: AclProcess, pointer: int, nbytes: int) -> int:
    return int.from_bytes(read(process, pointer, nbytes), "little")


# Attributes of queues -----------------------------------------------------------------------

_ATTRIBUTES: Final = {_NAME: _POINTER_NBYTES, _DEPTH: _NUMBER_NBYTES}


@entry("tdt.create_queue_attr", "", 0, has_code=False)
def _create_queue_attr(process: AclProcess) -> int:
    return _create(process, QueueAttr())


@entry("tdt.destroy_queue_attr", "k")
def _destroy_queue_attr(process: AclProcess, handle: int) -> None:
    _destroy(process, handle, QueueAttr)


@entry("tdt.set_queue_attr", "kIkk")
def _set_queue_attr(process: AclProcess, handle: int, kind: int, nbytes: int, pointer: int) -> None:
    attr = find_object(process, handle, QueueAttr)
    _check_parameter(kind, nbytes, pointer, _ATTRIBUTES)
    if kind == _DEPTH:
        attr.depth = _number(process, pointer, nbytes)
        return
    text = _number(process, pointer, nbytes)
    if not text:
        raise Refused(Code.INVALID_PARAM, "the name is null")
    name = bytearray()
    while (byte := read(process, text + len(name), 1)) != b"\0":
        name += byte
        if len(name) > LONGEST_NAME:
            raise Refused(Code.INVALID_PARAM, f"the name has more than {LONGEST_NAME} bytes")
    # Programs may still use the address of the earlier name. So the new name replaces the earlier
    # name at the same address.
    attr.name.value = bytes(name)


@entry("tdt.get_queue_attr", "kIkk", 0)
def _get_queue_attr(process: AclProcess, handle: int, kind: int, nbytes: int, pointer: int) -> int:
    attr = find_object(process, handle, QueueAttr)
    _check_room(kind, nbytes, pointer, _ATTRIBUTES)
    value = ctypes.addressof(attr.name) if kind == _NAME else attr.depth
    write(process, pointer, value.to_bytes(_ATTRIBUTES[kind], "little"))
    return _ATTRIBUTES[kind]


# Routes -------------------------------------------------------------------------------------

_PARAMETERS: Final = dict.fromkeys((_SOURCE, _TARGET, _STATUS), _NUMBER_NBYTES)


@entry("tdt.create_queue_route", "II", 0, has_code=False)
def _create_queue_route(process: AclProcess, source: int, target: int) -> int:
    return _create(process, Route(source, target))


@entry("tdt.destroy_queue_route", "k")
def _destroy_queue_route(process: AclProcess, handle: int) -> None:
    _destroy(process, handle, Route)


@entry("tdt.get_queue_route_param", "kIkk", 0)
def _get_queue_route_param(
    process: AclProcess, handle: int, kind: int, nbytes: int, pointer: int
) -> int:
    route = find_object(process, handle, Route)
    _check_room(kind, nbytes, pointer, _PARAMETERS)
    value = (route.source, route.target, route.status)[kind]
    write(process, pointer, value.to_bytes(_NUMBER_NBYTES, "little", signed=kind == _STATUS))
    return _NUMBER_NBYTES


@entry("tdt.create_queue_route_list", "", 0, has_code=False)
def _create_queue_route_list(process: AclProcess) -> int:
    return _create(process, [])


@entry("tdt.destroy_queue_route_list", "k")
def _destroy_queue_route_list(process: AclProcess, handle: int) -> None:
    _destroy(process, handle, list)


@entry("tdt.add_queue_route", "kk")
def _add_queue_route(process: AclProcess, handle: int, route_handle: int) -> None:
    routes: list[Route] = find_object(process, handle, list)
    route = find_object(process, route_handle, Route)
    routes.append(Route(route.source, route.target, route.status))


@entry("tdt.get_queue_route", "kkk")
def _get_queue_route(process: AclProcess, handle: int, index: int, route_handle: int) -> None:
    routes: list[Route] = find_object(process, handle, list)
    route = find_object(process, route_handle, Route)
    if index >= len(routes):
        raise Refused(Code.INVALID_PARAM, f"a list of {len(routes)} routes has no index {index}")
    found = routes[index]
    route.source, route.target, route.status = found.source, found.target, found.status


@entry("tdt.get_queue_route_num", "k", 0, has_code=False)
def _get_queue_route_num(process: AclProcess, handle: int) -> int:
    return len(find_object(process, handle, list))


# Queries of routes --------------------------------------------------------------------------

_MODE = 0
_QUERY: Final = dict.fromkeys((_MODE, 1, 2), _NUMBER_NBYTES)


@entry("tdt.create_queue_route_query_info", "", 0, has_code=False)
def _create_queue_route_query_info(process: AclProcess) -> int:
    return _create(process, RouteQuery())


@entry("tdt.destroy_queue_route_query_info", "k")
def _destroy_queue_route_query_info(process: AclProcess, handle: int) -> None:
    _destroy(process, handle, RouteQuery)


@entry("tdt.set_queue_route_query_info", "kIkk")
def _set_queue_route_query_info(
    process: AclProcess, handle: int, kind: int, nbytes: int, pointer: int
) -> None:
    query = find_object(process, handle, RouteQuery)
    _check_parameter(kind, nbytes, pointer, _QUERY)
    value = _number(process, pointer, nbytes)
    setattr(query, ("mode", "source", "target")[kind], value)
