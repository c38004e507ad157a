# SPDX-License-Identifier: Apache-2.0
"""Timelines: a process signals a value. Other processes wait for it on the host or on streams."""
