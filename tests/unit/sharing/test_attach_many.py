# SPDX-License-Identifier: Apache-2.0
"""A failed :func:`crossmem.attach_many` leaves nothing behind, not even a warning."""

import gc
import warnings
from typing import Any

import pytest

import crossmem
from crossmem import ConfigurationError, OwnerGoneError
from crossmem.sharing.importer.record import ImportRecord


def test_mappings_before_the_failure_end_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    device = crossmem.device("hip:0", runtime="emulated")
    calls: list[object] = []
    map_ = ImportRecord.map

    def fail_later(self: ImportRecord, *arguments: object, **options: object) -> int:
        calls.append(self)
        if len(calls) == 2:
            raise OwnerGoneError("the owner died")
        return map_(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ImportRecord, "map", fail_later)
    with device.allocate(64) as first, device.allocate(64) as second:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(OwnerGoneError, match="the owner died"):
                crossmem.attach_many([first.export(), second.export()])
            gc.collect()

        assert len(calls) == 2
        mine = {first.export(), second.export()}
        assert [one.leases for one in crossmem.exports() if one.handle in mine] == [(), ()]


@pytest.mark.parametrize("wrong", [None, 5, b"XMEM", "text"])
def test_something_else_than_several_handles_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be an iterable of handles") as raised:
        crossmem.attach_many(wrong)
    assert "crossmem.attach()" in (raised.value.hint or "")


def test_one_handle_is_not_several() -> None:
    with crossmem.device("host").allocate(64) as memory:
        one: Any = memory.export()
        with pytest.raises(ConfigurationError, match="not ShareableHandle"):
            crossmem.attach_many(one)
