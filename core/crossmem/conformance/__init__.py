# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: tests of the laws that every backend must pass.

Run them with::

    pytest --pyargs crossmem.conformance --crossmem-device BACKEND:N

Each test carries the law that it tests in its name (``-k c06`` runs those of C6), runs its other
processes with deadlines, and is skipped where the device's capabilities do not offer what it
needs; where a capability is false, another test checks that the call is refused.
``--crossmem-require`` turns skips into failures, ``--crossmem-report`` writes the outcome as JSON.

:mod:`crossmem.conformance.peers` and :mod:`crossmem.conformance.actions` are the harness, for
backend authors who add tests of their own.
"""
