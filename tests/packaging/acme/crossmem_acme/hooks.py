# SPDX-License-Identifier: Apache-2.0
"""What crossmem finds: one backend. Nothing is loaded until someone asks for it."""

import sys

from crossmem.driver import Driver
from crossmem.plugin import Availability, Backend, hookimpl


def probe() -> Availability:
    if sys.platform != "linux":
        return Availability("unusable", "the boards of Acme need Linux")
    return Availability("available")


def load(runtime: str | None) -> Driver:
    del runtime  # There is one way to reach the boards.
    from crossmem_acme.driver import AcmeDriver

    return AcmeDriver()


@hookimpl
def crossmem_backends() -> list[Backend]:
    return [
        Backend(
            name="acme",
            summary="boards of Acme",
            api_version=1,
            probe=probe,
            load=load,
            priority=10,
        )
    ]
