# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems whose queues of the vendor break the laws that such queues keep."""

from typing import Any

from mutation import always, instead, vendor_mutant

from crossmem.errors import CrossmemError
from crossmem.sharing.queues import vendor, vendor_making, vendor_record
from crossmem_ascend import queues


@vendor_mutant
def q01_the_vendors_queue_gives_the_second_first() -> None:
    @instead(queues.QueueMechanism, "dequeue")
    def _(old: Any, self: Any, queue: Any, timeout_s: float) -> Any:
        kept = vars(self).setdefault("kept", [])
        if kept:
            return kept.pop()
        found = old(self, queue, timeout_s)
        after = None if found is None else old(self, queue, 0.05)
        kept += [] if after is None else [found]
        return found if after is None else after


@vendor_mutant
def q02_the_vendors_buffer_is_given_twice() -> None:
    @instead(vendor_record.VendorQueueRecord, "get")
    def _(old: Any, self: Any, timeout_s: float) -> Any:
        found = old(self, timeout_s)
        if found is not None:
            again = self.allocate()
            again.write(found.read())
            self.driver.enqueue(
                self.queues[0], again._record.vendor, found.data_length, found.user_data, 0.0
            )
        return found


@vendor_mutant
def q03_a_full_queue_of_the_vendor_takes_more() -> None:
    @instead(queues.QueueMechanism, "create_queue")
    def _(old: Any, self: Any, ordinal: int, depth: int, mechanism: str) -> Any:
        return old(self, ordinal, depth + 1, mechanism)


@vendor_mutant
def q03_a_queue_of_the_vendor_always_waits() -> None:
    @instead(vendor_making, "make_vendor_queue")
    def _(old: Any, process: Any, device: Any, terms: Any, *args: Any, **places: int) -> Any:
        return old(process, device, terms._replace(waits=True), *args, **places)

    from crossmem.sharing.queues import making

    setattr(making, "make_vendor_queue", vendor_making.make_vendor_queue)  # noqa: B010 - mypy


@vendor_mutant
def q04_the_vendors_buffer_can_be_used_after_the_put() -> None:
    @instead(vendor, "taken_from")
    def _(old: Any, buffer: Any, holder: Any) -> Any:
        buffer._record = record = old(buffer, holder)
        return record


@vendor_mutant
def q09_the_owner_of_the_vendors_queue_is_alive() -> None:
    always(vendor_record.VendorQueueRecord, "check_owner", None)


@vendor_mutant
def q09_nobody_hears_of_the_end_of_the_vendors_queue() -> None:
    always(vendor_record.VendorQueueRecord, "_tell_others", None)


@vendor_mutant
def q11_the_vendors_user_data_are_cut() -> None:
    @instead(queues.QueueMechanism, "enqueue")
    def _(old: Any, self: Any, *args: Any) -> Any:
        queue, buffer, length, user_data, timeout_s = args
        return old(self, queue, buffer, length, user_data[:90], timeout_s)


@vendor_mutant
def q12_the_vendors_queue_knows_no_roles() -> None:
    always(vendor_record.VendorQueueRecord, "join", None)
    always(vendor_record.VendorQueueRecord, "check_owner", None)


@vendor_mutant
def q14_a_wait_for_the_vendor_is_taken_lightly() -> None:
    @instead(vendor, "check_wait")
    def _(old: Any, timeout: Any, **default: float) -> float:
        return float(old(timeout, **default)) / 4


@vendor_mutant
def q15_a_queue_of_the_vendor_is_for_one_thread() -> None:
    @instead(vendor_record.VendorQueueRecord, "_repeat")
    def _(old: Any, self: Any, *args: Any) -> Any:
        if vars(vendor_record).setdefault("busy", []):
            msg = "another thread uses this queue"
            raise CrossmemError(msg)
        vars(vendor_record)["busy"].append(self)
        try:
            return old(self, *args)
        finally:
            vars(vendor_record)["busy"].clear()


@vendor_mutant
def c25_a_queue_of_the_vendor_takes_what_it_lacks() -> None:
    from crossmem.sharing.queues import making

    always(making, "refuse_features", None)


@vendor_mutant
def c25_a_queue_of_the_vendor_ignores_streams() -> None:
    @instead(vendor.QueueOfVendor, "_refuse")
    def _(old: Any, self: Any, what: str) -> None:
        if "stream" not in what:
            old(self, what)
