# SPDX-License-Identifier: Apache-2.0
"""How leases travel between processes. Knows no vendor."""
