# SPDX-License-Identifier: Apache-2.0
"""Options and markers of crossmem's conformance kit, for pytest.

pytest loads this package for every project in the environment. Therefore this package only declares
options and markers, whose names start with ``crossmem``. It has no fixture and no hook that affects
other projects' tests. If a run names the kit, ``crossmem.conformance``, this package imports the
kit's report and device check; otherwise, it does not import crossmem. The kit reads the options and
applies the markers.
"""

import argparse
from importlib import import_module
from typing import Final

import pytest

__all__ = ["DEFAULT_DEVICE", "pytest_addoption", "pytest_configure"]

DEFAULT_DEVICE: Final = "host"
"""The default device of the kit."""

_KIT: Final = "crossmem.conformance"


def _names(text: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the kit's options, which the kit reads by ``config.getoption``."""
    group = parser.getgroup("crossmem", "conformance kit of crossmem")
    group.addoption(
        "--crossmem-device",
        default=DEFAULT_DEVICE,
        metavar="BACKEND:N",
        help=f"device to test, default {DEFAULT_DEVICE}",
    )
    group.addoption(
        "--crossmem-runtime",
        default=None,
        metavar="NAME",
        help="vendor binding to use, such as 'emulated'; default: the backend's own choice",
    )
    group.addoption(
        "--crossmem-mechanism",
        default=None,
        metavar="NAME",
        help="mechanism by which the device shares memory; default: the device's preferred one",
    )
    group.addoption(
        "--crossmem-core",
        action="store_true",
        help="run only the core of the kit: a few tests for each law",
    )
    group.addoption(
        "--crossmem-blocks",
        action="store_true",
        help="test blocks of pools in place of allocations",
    )
    group.addoption(
        "--crossmem-fork-peers",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="fork the kit's peer processes from a process that has imported crossmem, which is "
        "faster than starting new interpreters; default: only on host memory and emulated devices, "
        "because vendors' libraries may not survive a fork",
    )
    group.addoption(
        "--crossmem-mask",
        default=None,
        metavar="VARIABLE",
        help="environment variable that selects and orders the backend's visible devices, like "
        "CUDA_VISIBLE_DEVICES; the kit knows the variables of crossmem's own backends",
    )
    group.addoption(
        "--crossmem-require",
        action="extend",
        type=_names,
        default=[],
        metavar="NAMES",
        help="names of laws and capabilities, separated by commas, such as C24,peer_access: if a "
        "test of one of them is skipped, the test counts as failed; you can give this option "
        "several times",
    )
    group.addoption(
        "--crossmem-report",
        default=None,
        metavar="FILE",
        help="write the device's capabilities and the outcome of each law to FILE, as JSON",
    )


def _names_kit(config: pytest.Config) -> bool:
    return config.getoption("pyargs") and any(arg.startswith(_KIT) for arg in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """If a run names the kit, check the device once, and run no test if it is unusable."""
    is_worker = hasattr(config, "workerinput")
    if is_worker or config.option.help or config.option.collectonly or not _names_kit(config):
        return None
    code: int | None = import_module(f"{_KIT}.opening").refuse(config)
    return code


def pytest_configure(config: pytest.Config) -> None:
    """Declare the kit's markers; if the kit is named, load its report."""
    config.addinivalue_line("markers", "crossmem_law(id): the law of the contract that is tested")
    config.addinivalue_line("markers", "crossmem_core: one of the tests of --crossmem-core")
    config.addinivalue_line(
        "markers", "crossmem_requires(capability): skip on devices without that capability"
    )
    config.addinivalue_line(
        "markers",
        "crossmem_with_vendor_queues: run even if the mechanism shares only queues of the vendor",
    )
    config.addinivalue_line(
        "markers", "crossmem_not_of_blocks(reason): skip with --crossmem-blocks"
    )
    if _names_kit(config):
        config.pluginmanager.import_plugin(f"{_KIT}.reporting")
