# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: tests of the contract's laws. Every backend must pass these tests.

Run them with::

    pytest --pyargs crossmem.conformance --crossmem-device BACKEND:N

The name of each test contains its law (``-k c06`` runs the tests of C6). The processes that a test
starts have deadlines. If the device lacks a capability, the tests that need the capability are
skipped, and another test checks that crossmem refuses calls that need it. ``--crossmem-require``
names laws and capabilities, and turns skips of their tests into failures. ``--crossmem-report``
writes the outcome as JSON.

:mod:`crossmem.conformance.peers` and :mod:`crossmem.conformance.actions` are the harness, for
backend authors who add tests of their own.
"""
