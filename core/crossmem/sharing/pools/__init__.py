# SPDX-License-Identifier: Apache-2.0
"""Pools: memory in blocks of one size, which processes share without a message for each block."""
