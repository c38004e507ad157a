# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: tests of the contract's laws. Every backend must pass these tests.

Run them with::

    pytest --pyargs crossmem.conformance --crossmem-device BACKEND:N

The name of each test contains its law (``-k c06`` runs the tests of C6). If the device lacks a
capability, the kit skips the tests of the capability. Other tests check that crossmem refuses calls
that need a missing capability. ``--crossmem-require`` names laws and capabilities whose skipped
tests count as failures. ``--crossmem-report`` writes the outcome to a file, as JSON.

:mod:`crossmem.conformance.peers` and :mod:`crossmem.conformance.actions` are the harness, for
backend authors who add tests of their own.
"""
