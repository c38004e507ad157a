# SPDX-License-Identifier: Apache-2.0
"""What a leak check found fits a screen."""

from crossmem.conformance.pool import LeakError


def test_a_few_leaks_are_all_listed() -> None:
    error = LeakError.of("<Peer 7>", [f"descriptors: 1 x /tmp/{n}" for n in range(10)])

    assert str(error).startswith("in <Peer 7>: descriptors: 1 x /tmp/0; ")
    assert str(error).endswith("; descriptors: 1 x /tmp/9")


def test_of_many_leaks_ten_are_listed_and_the_rest_counted() -> None:
    error = LeakError.of("<Peer 7>", [f"descriptors: 1 x /tmp/{n}" for n in range(4000)])

    assert str(error).count("descriptors: ") == 10
    assert str(error).endswith("; descriptors: 1 x /tmp/9; and 3990 more")
