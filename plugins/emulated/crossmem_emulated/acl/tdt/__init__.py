# SPDX-License-Identifier: Apache-2.0
"""TDT: shared buffers, and the queues that hand them over or copy data (``acl_tdt_queue.h``)."""
