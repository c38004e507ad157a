# SPDX-License-Identifier: Apache-2.0
"""The transport of leases between processes. It contains no vendor code."""
