# SPDX-License-Identifier: Apache-2.0
"""Queues: device buffers that go from process to process."""
