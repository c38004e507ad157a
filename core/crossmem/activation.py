# SPDX-License-Identifier: Apache-2.0
"""What one call sets up in a process that sends arrays to others."""

import warnings

from crossmem.arrays.libraries import used
from crossmem.errors import UnsupportedError
from crossmem.multiprocessing import register as register_multiprocessing
from crossmem.ray.serializers import register as register_ray

__all__ = ["install"]


def install() -> None:
    """Let this process send arrays through queues, pipes, pools and Ray as handles.

    Arrays, tensors and trees in memory of crossmem then cross without a copy, in everything that
    pickles as ``multiprocessing`` does: ``multiprocessing``, ``concurrent.futures`` and
    ``torch.multiprocessing``. The same goes for Ray if this process has imported it. All other
    arrays are sent as before, and so is what plain ``pickle`` writes.

    Call it once in each process that sends, after its imports. A process whose parent called it
    before a fork has it. So has a process that has received something through ``multiprocessing``;
    one that only receives needs nothing. Calling it again is harmless and takes microseconds.

    Warns
    -----
    RuntimeWarning
        If this Ray lacks something that crossmem needs. Ray then copies arrays.

    Notes
    -----
    For Ray, pass the function to the workers that send, too::

        ray.init(runtime_env={"worker_process_setup_hook": crossmem.install})
    """
    register_multiprocessing()
    if used("ray") is not None:
        try:
            register_ray()
        except UnsupportedError as error:
            warnings.warn(f"Ray copies arrays: {error}", RuntimeWarning, stacklevel=2)
