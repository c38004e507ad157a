# SPDX-License-Identifier: Apache-2.0
"""The importer's side: imports, mappings, and messages that reserve memory for a receiver."""
