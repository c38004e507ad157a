# SPDX-License-Identifier: Apache-2.0
"""What applications use: devices, allocations, imports and mappings."""
