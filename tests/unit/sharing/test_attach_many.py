# SPDX-License-Identifier: Apache-2.0
"""A failed :func:`crossmem.attach_many` leaves nothing behind, not even a warning."""

import gc
import warnings

import pytest

import crossmem
from crossmem import OwnerGoneError
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
