# SPDX-License-Identifier: Apache-2.0
"""The emulation of TDT, ACL's functions for buffers and queues (``acl_tdt_queue.h``)."""
