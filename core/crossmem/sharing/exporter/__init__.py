# SPDX-License-Identifier: Apache-2.0
"""The exporter's side: allocations, adoptions, exports and the report of lease holders."""
