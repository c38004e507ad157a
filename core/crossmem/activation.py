# SPDX-License-Identifier: Apache-2.0
"""The function that lets a process send arrays as handles."""

import warnings

from crossmem.arrays.libraries import used
from crossmem.errors import UnsupportedError
from crossmem.multiprocessing import register as register_multiprocessing
from crossmem.ray.serializers import register as register_ray

__all__ = ["install"]


def install() -> None:
    """Let this process send arrays as handles through ``multiprocessing`` and Ray.

    Arrays, tensors and trees in memory of crossmem then travel without a copy through
    ``multiprocessing``, ``concurrent.futures``, ``torch.multiprocessing``, and everything else that
    uses the pickler of ``multiprocessing``. If this process has imported Ray, Ray also sends these
    objects without a copy to receivers on the same node. Nothing changes for other arrays or for
    plain ``pickle``.

    Call this function once in each process that sends arrays or trees. Call it after the import
    statements, because the function registers with Ray only if Ray is already imported. A forked
    child inherits the effect. A process that only receives does not need the call. A second call
    has an effect only if the program imported Ray after the first call: the second call then
    registers with Ray.

    Warns
    -----
    RuntimeWarning
        The installed Ray lacks something that crossmem needs. Ray then copies arrays.

    Notes
    -----
    Ray's workers that send arrays need the call, too. With this line, Ray makes the call in each
    worker::

        ray.init(runtime_env={"worker_process_setup_hook": crossmem.install})
    """
    register_multiprocessing()
    if used("ray") is not None:
        try:
            register_ray()
        except UnsupportedError as error:
            warnings.warn(f"Ray copies arrays: {error}", RuntimeWarning, stacklevel=2)
