# SPDX-License-Identifier: Apache-2.0
"""Pools: memory cut into equal blocks that are shared without a system call or a message."""
