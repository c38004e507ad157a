# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors in memory of crossmem as arguments, results and objects of Ray.

Call :func:`register` in every process that sends::

    import crossmem.ray

    ray.init(runtime_env={"worker_process_setup_hook": crossmem.ray.register})
    crossmem.ray.register()                 # the driver is no worker

    weights = crossmem.empty(shape, "float32")
    actor.load.remote(weights)              # on this node a handle, on another one a copy

What lies elsewhere is serialised as Ray does it without this. A process that only receives needs
nothing but an installed crossmem.
"""

from crossmem.ray.serializers import register

__all__ = ["register"]
