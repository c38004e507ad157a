# SPDX-License-Identifier: Apache-2.0
"""Timelines, by which the hosts and streams of several processes wait for each other's work."""
