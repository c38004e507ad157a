# SPDX-License-Identifier: Apache-2.0
"""The protocol by which processes request, hold and end leases. This package has no vendor code."""
