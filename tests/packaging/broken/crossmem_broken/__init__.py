# SPDX-License-Identifier: Apache-2.0
"""Plugin of crossmem whose import fails."""
