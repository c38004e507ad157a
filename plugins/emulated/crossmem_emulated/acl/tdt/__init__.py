# SPDX-License-Identifier: Apache-2.0
"""TDT, ACL's part for the transfer of data: buffers and queues (``acl_tdt_queue.h``)."""
