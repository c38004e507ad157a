# SPDX-License-Identifier: Apache-2.0
"""Memory of Ascend NPUs as a backend of crossmem."""
