# SPDX-License-Identifier: Apache-2.0
"""Timelines: order across processes, on the host and on streams."""
