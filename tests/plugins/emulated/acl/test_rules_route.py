# SPDX-License-Identifier: Apache-2.0
"""ACL-Q7, Q28 to Q36 and Q40: routes from queues to queues."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, differs, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Members
    from tests.plugins.emulated.acl.tdt_actions import (
        contents,
        get_data,
        new_buffer,
        new_queue,
        number,
        number_at,
        on_device,
        on_host,
        put_data,
        query,
        routes_of,
        statuses,
    )
else:
    from acl_actor import Actor, differs, emulation_only, ok
    from tdt_actions import (
        contents,
        get_data,
        new_buffer,
        new_queue,
        number,
        number_at,
        on_device,
        on_host,
        put_data,
        query,
        routes_of,
        statuses,
    )

    Members = Any

pytestmark = emulation_only

BY_SOURCE, BY_TARGET, BY_BOTH, ABNORMAL = 0, 1, 2, 100


def bound(acl: Actor, *ends: tuple[int, int]) -> int:
    """Bind routes, and return their list."""
    listed = routes_of(acl, *ends)
    ok(acl.tdt.bind_queue_routes(listed))
    return listed


@differs({"documented": 500001, "310b-rc": 500001})
def test_q7_a_queue_with_routes_is_not_destroyed(acl: Actor, code: int) -> None:
    source, target = new_queue(acl), new_queue(acl)
    listed = bound(acl, (source, target))

    assert [acl.tdt.destroy_queue(qid) for qid in (source, target)] == [code] * 2
    acl.check_broken("ACL-Q7", "ACL-Q7")
    ok(acl.tdt.unbind_queue_routes(listed))
    ok(acl.tdt.destroy_queue(source))


@differs({"310b-rc": 0})
def test_q28_consumers_share_the_data(acl: Actor, code: int) -> None:
    source, *targets = (new_queue(acl) for _ in range(3))
    bound(acl, *((source, one) for one in targets))
    ok(acl.tdt.enqueue(source, new_buffer(acl, b"shared"), 0))
    first, second = (ok(acl.tdt.dequeue(one, 0)) for one in targets)

    assert acl.tdt.dequeue(source, 0) == (0, 500001)
    assert ok(acl.tdt.get_buf_data(first)) == ok(acl.tdt.get_buf_data(second))
    assert contents(acl, first) == b"shared"
    assert acl.tdt.free_buf(second) == code
    acl.check_broken()
    acl.call("poke", ok(acl.tdt.get_buf_data(first))[0], b"WRONG!")
    assert acl.tdt.free_buf(first) == code
    acl.check_broken("ACL-Q28")


@differs({"documented": 500001, "310b-rc": 500001})
def test_q29_one_layer_of_routes(acl: Actor, code: int) -> None:
    first, second, third = (new_queue(acl) for _ in range(3))
    bound(acl, (first, second))

    for ends in ((second, third), (third, first), (second, first), (third, third)):
        listed = routes_of(acl, ends)
        assert acl.tdt.bind_queue_routes(listed) == code
        assert statuses(acl, listed) == [0]
    acl.check_broken(*["ACL-Q29"] * 4)


@differs({"documented": 0})
def test_q30_twice_is_no_mistake(acl: Actor, code: int) -> None:
    source, target = new_queue(acl), new_queue(acl)
    listed = bound(acl, (source, target))

    assert acl.tdt.bind_queue_routes(listed) == code
    assert statuses(acl, listed) == [1]
    assert query(acl, BY_SOURCE, source) == ([1], 0)
    assert [acl.tdt.unbind_queue_routes(listed) for _ in range(2)] == [code] * 2
    assert statuses(acl, listed) == [0]
    acl.check_broken()


@differs({"documented": 500001})
def test_q31_some_routes_are_bound(acl: Actor, code: int) -> None:
    source, *targets = (new_queue(acl) for _ in range(3))
    listed = routes_of(acl, (source, targets[0]), (source, 99), (source, targets[1]))

    assert acl.tdt.bind_queue_routes(listed) == code
    assert statuses(acl, listed) == [1, 0, 1]
    ok(put_data(acl, source, b"data"))
    assert [get_data(acl, one)[0] for one in targets] == [b"data"] * 2
    acl.check_broken()


@differs({"documented": 500001})
def test_q32_there_are_so_many_routes(acl: Actor, code: int) -> None:
    source, target = new_queue(acl), new_queue(acl)
    acl.call("run", "tdt_actions", "fill_routes")

    assert acl.tdt.bind_queue_routes(routes_of(acl, (source, target))) == code


@differs({"documented": 207014})
def test_q33_a_full_target_holds_up_its_source(acl: Actor, code: int) -> None:
    source, small, large = new_queue(acl, 2), new_queue(acl, 2), new_queue(acl)
    bound(acl, (source, small), (source, large))
    # One is in the target, one in the router, and one in the source.
    answers = [put_data(acl, source, bytes([value])) for value in range(4)]

    assert answers == [0, 0, 0, code]
    # The other target has what the router has.
    assert [get_data(acl, large)[0] for _ in range(3)] == [b"\0", b"\1", b""]
    assert [get_data(acl, small)[0] for _ in range(4)] == [b"\0", b"\1", b"\2", b""]
    assert get_data(acl, large)[0] == b"\2"
    ok(put_data(acl, source, b"after"))
    assert get_data(acl, small)[0] == b"after"


@on_host
def test_q33_a_removed_route_holds_up_nothing(acl: Actor) -> None:
    source, small, large = new_queue(acl, 2), new_queue(acl, 2), new_queue(acl)
    bound(acl, (source, small), (source, large))
    for value in range(3):
        ok(put_data(acl, source, bytes([value])))
    ok(acl.tdt.unbind_queue_routes(routes_of(acl, (source, small))))

    assert [get_data(acl, large)[0] for _ in range(3)] == [b"\0", b"\1", b"\2"]


@differs({"310b-rc": 0})
def test_q34_routes_of_destroyed_queues(members: Members, code: int) -> None:
    binder, other = members(2)
    first, second, third = (new_queue(binder) for _ in range(3))
    bound(binder, (first, second), (first, third))
    # A process that has bound no route asks no router.
    assert other.tdt.destroy_queue(third) == code

    assert query(binder, BY_SOURCE, first) == ([1, 2], 0)
    assert query(binder, BY_TARGET, 0, second) == ([1], 0)
    assert query(binder, BY_BOTH, first, third) == ([2], 0)
    assert query(binder, ABNORMAL) == ([2], 0)
    assert query(binder, BY_TARGET, 0, 99) == ([], 0)
    ok(binder.tdt.enqueue(first, new_buffer(binder), 0))
    ok(binder.tdt.dequeue(second, 0))


@differs({"310b-rc": 0})
def test_q35_two_threads_with_routes(acl: Actor, code: int) -> None:
    bound(acl, (new_queue(acl), new_queue(acl)))
    info, listed = acl.tdt.create_queue_route_query_info(), acl.tdt.create_queue_route_list()
    ok(acl.tdt.set_queue_route_query_info(info, 0, 4, number_at(acl, ABNORMAL)))

    assert acl.call("run", "tdt_actions", "query_twice", info, listed) == [code] * 2
    acl.check_broken("ACL-Q35")


@differs({"documented": 507899, "310b-rc": 507899})
def test_q36_the_first_bind_starts_the_router(acl: Actor, code: int) -> None:
    source, target = new_queue(acl), new_queue(acl)

    assert acl.tdt.unbind_queue_routes(routes_of(acl, (source, target))) == code
    assert query(acl, BY_SOURCE, source) == ([], code)
    bound(acl, (source, target))
    assert query(acl, BY_SOURCE, source) == ([1], 0)
    acl.check_broken()


@differs({"documented": 100000})
def test_q40_routes_and_lists(acl: Actor, code: int) -> None:
    route, place = acl.tdt.create_queue_route(3, 4), number_at(acl)
    listed = acl.tdt.create_queue_route_list()
    values = []
    for kind in range(3):
        assert acl.tdt.get_queue_route_param(route, kind, 4, place) == (4, 0)
        values.append(number(acl, place))
    assert values == [3, 4, 0]
    ok(acl.tdt.add_queue_route(listed, route))
    assert acl.tdt.get_queue_route_num(listed) == 1
    assert acl.tdt.get_queue_route_num(0) == 0

    for kind, nbytes, to in ((3, 4, place), (0, 3, place), (0, 4, 0)):
        assert acl.tdt.get_queue_route_param(route, kind, nbytes, to) == (0, code)
    assert acl.tdt.get_queue_route_param(0, 0, 4, place) == (0, code)
    assert acl.tdt.get_queue_route(listed, 1, route) == code
    assert acl.tdt.get_queue_route(0, 0, route) == code
    assert acl.tdt.add_queue_route(listed, 0) == code
    for destroy in (acl.tdt.destroy_queue_route, acl.tdt.destroy_queue_route_list):
        assert destroy(0) == code
    for call in (acl.tdt.bind_queue_routes, acl.tdt.unbind_queue_routes):
        assert call(0) == code
    acl.check_broken()
    ok(acl.tdt.destroy_queue_route(route))
    ok(acl.tdt.destroy_queue_route_list(listed))
    assert acl.tdt.get_queue_route_num(listed) == 0
    acl.check_broken("ACL-Q39")


@differs({"documented": 100000})
def test_q40_queries(acl: Actor, code: int) -> None:
    source, target = new_queue(acl), new_queue(acl)
    listed = bound(acl, (source, target))
    info = acl.tdt.create_queue_route_query_info()

    assert acl.tdt.query_queue_routes(0, listed) == code
    assert acl.tdt.query_queue_routes(info, 0) == code
    assert acl.tdt.query_queue_routes(info, listed) == code
    # The list is cleared all the same.
    assert acl.tdt.get_queue_route_num(listed) == 0
    for mode in (BY_SOURCE, BY_TARGET, BY_BOTH, 3):
        ok(acl.tdt.set_queue_route_query_info(info, 0, 4, number_at(acl, mode)))
        assert acl.tdt.query_queue_routes(info, listed) == code
    for kind, nbytes, at in ((3, 4, info), (0, 5, info), (0, 4, 0)):
        assert acl.tdt.set_queue_route_query_info(info, kind, nbytes, at) == code
    ok(acl.tdt.destroy_queue_route_query_info(info))
    assert acl.tdt.destroy_queue_route_query_info(0) == code
    acl.check_broken()


@on_device
@pytest.mark.parametrize("is_own", [True, False])
def test_binding_needs_the_permission_to_manage(members: Members, is_own: bool) -> None:
    owner, other = members(2)
    source, target = new_queue(owner), new_queue(owner)
    for qid in (source, target):
        ok(owner.tdt.grant_queue(qid, other.pid, 7 if is_own else 6, 0))
        ok(other.tdt.attach_queue(qid, 0))

    listed = routes_of(other, (source, target))
    assert other.tdt.bind_queue_routes(listed) == (0 if is_own else 500001)
    assert statuses(other, listed) == [int(is_own)]
    other.check_broken(*([] if is_own else ["ACL-Q26"]))
