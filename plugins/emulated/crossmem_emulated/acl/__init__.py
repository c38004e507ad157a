# SPDX-License-Identifier: Apache-2.0
"""Huawei's ACL without hardware: an object with the interface of pyACL (``import acl``).

Rules, result codes and lifetimes follow Huawei's documents. In some profiles, they follow the
drivers' source code instead. docs/reference/acl-rules.md lists the rules and their tests.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from crossmem.errors import CrossmemError
from crossmem_emulated.acl import (
    access,
    callbacks,
    copies,
    device,
    events,
    extents,
    fabric,
    host,
    keys,
    notifies,
    plain,
    shares,
    streams,
    values,
    vmm,
)
from crossmem_emulated.acl.calls import ENTRIES
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.profiles import PROFILES, profile_named
from crossmem_emulated.acl.tdt import buffers, chains, data, grants, objects, pools, queues, routes
from crossmem_emulated.acl.util import Util
from crossmem_emulated.journal import Faults, Violation
from crossmem_emulated.machine import Machine, log_fault
from crossmem_emulated.options import Options

__all__ = ["PROFILES", "Acl", "Violation"]

# Importing one of these modules registers the functions of the module.
_FAMILIES = (
    access,
    buffers,
    callbacks,
    chains,
    copies,
    data,
    device,
    events,
    extents,
    fabric,
    grants,
    host,
    keys,
    notifies,
    objects,
    plain,
    pools,
    queues,
    routes,
    shares,
    streams,
    values,
    vmm,
)


class Acl:
    """An emulation of pyACL for this process.

    The functions take positional arguments. Nearly all functions return their outputs followed by
    the error code. A function without outputs returns only the error code. The folder
    ``options.state`` stands for one emulated host. All ``Acl`` objects with the same folder, in any
    process, use the same devices, and can import each other's shareable handles and keys.

    Parameters
    ----------
    profile
        Edition of the rules, one of ``PROFILES``.
    strict
        Whether the emulation records calls that the vendor forbids or leaves undefined, and
        protects device addresses from the CPU.
    options
        The settings of the emulated host, such as its folder and devices. If None, they are read
        from the environment.

    Attributes
    ----------
    rt, util
        The emulations of pyACL's modules ``acl.rt`` and ``acl.util``.
    tdt
        The C functions that ``acl_tdt_queue.h`` declares. pyACL lacks these functions; here they
        have the conventions of pyACL. If a parameter of the C function is a pointer, pass the
        address as an int, as for ``rt.memcpy``.
    c
        The other C functions that pyACL lacks, also with the conventions of pyACL.
    faults
        The injected faults. ``faults.add("rt.map_mem", 507899)`` makes the next call of
        ``rt.map_mem`` on this host return 507899.
    machine
        The emulated host.

    Raises
    ------
    ConfigurationError
        There is no such profile, or the host's folder cannot be used.
    """

    init: Callable[..., int]
    finalize: Callable[..., int]
    finalize_reference: Callable[..., tuple[int, int]]
    get_version: Callable[..., tuple[int, int, int, int]]
    rt: Any
    tdt: Any
    c: Any

    def __init__(
        self,
        profile: str = "documented",
        strict: bool = True,  # noqa: FBT001, FBT002 - callers pass it by position
        *,
        options: Options | None = None,
    ) -> None:
        options = options or Options.from_environ(os.environ)
        process = self._process = AclProcess(
            profile=profile_named(profile),
            strict=strict,
            folder=options.state,
            visible=_visible(options.devices, os.environ.get("ASCEND_RT_VISIBLE_DEVICES")),
            capacity_nbytes=options.capacity_nbytes,
            slow_streams=options.slow_streams,
            group=options.acl_group,
            recycle_s=options.acl_recycle_s,
        )
        modules: dict[str, dict[str, Any]] = {"": {}, "rt": {}, "tdt": {}, "c": {}}
        for name, called in ENTRIES.items():
            module, _, function = name.rpartition(".")
            modules[module][function] = process.bind(called)
        if not process.profile.newer:
            # Older editions of pyACL lack these functions. C programs can call them, but get an
            # error code.
            for function in ("value_wait", "value_write"):
                del modules["rt"][function]
        vars(self).update(modules[""])
        self.rt = SimpleNamespace(**modules["rt"])
        self.tdt = SimpleNamespace(**modules["tdt"])
        self.c = SimpleNamespace(**modules["c"])
        self.util = Util(process)
        # pyACL's modules that are not emulated. Programs read these attributes, but call nothing in
        # the modules.
        self.mdl = self.media = self.op = self.blas = self.prof = SimpleNamespace()
        self.faults: Faults = process.faults
        self.machine: Machine = process.machine

    @override
    def __repr__(self) -> str:
        kind = "strict" if self._process.strict else "lax"
        return f"<Acl {self._process.profile.name} {kind} on {self.machine.folder}>"

    @property
    def violations(self) -> list[Violation]:
        """The recorded calls that the vendor forbids or leaves undefined.

        The list contains the calls of all processes of this host.
        """
        return self._process.journal.read()

    @property
    def space(self) -> Any:
        """The device addresses that this process has reserved or mapped, for tests."""
        return self._process.space

    def answer(self, name: str, *values: Any) -> tuple[tuple[Any, ...] | None, int]:
        """Call a function by its name. The emulated library for C programs uses this method.

        Returns
        -------
        tuple
            The outputs and the error code. The outputs are None if the call leaves the caller's
            variables unchanged.
        """
        answered = self._process.answer(ENTRIES[name], list(values))
        log_fault(self._process.fault)
        return answered

    def crossmem_fault(self) -> CrossmemError | None:
        """Return the emulation's own error that made this thread's last call fail, or None.

        The vendor has no code for such an error, so the call returned a general code.
        """
        return self._process.fault

    def rename_error(self, name: str, text: str | None) -> None:
        """Set the text of the last error: the C function's name, and ``text`` as the reason.

        If ``text`` is None, the emulation's own reason stays.
        """
        process = self._process
        why = process.recent_error.partition(": ")[2] if text is None else text
        process.recent_error = f"{name}: {why}"

    def get_soc_name(self) -> str:
        """Return the product's name, without an error code."""
        return self._process.profile.soc

    def get_recent_err_msg(self) -> str:
        """Return and forget the reason of this thread's last failure. There is no error code."""
        text, self._process.recent_error = self._process.recent_error, ""
        return text


def _visible(devices: int, mask: str | None) -> tuple[int, ...]:
    """Return the host-wide index of each visible device.

    The position in the result is the device's number in this process. ``devices`` is the number of
    the host's devices, and ``mask`` the value of ASCEND_RT_VISIBLE_DEVICES. The first invalid or
    repeated entry of the mask is ignored, and so are all later entries.
    """
    if mask is None:
        return tuple(range(devices))
    found: list[int] = []
    for entry in mask.split(","):
        text = entry.strip()
        if not text.isdecimal() or int(text) >= devices or int(text) in found:
            break
        found.append(int(text))
    return tuple(found)
