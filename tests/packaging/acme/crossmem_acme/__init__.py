# SPDX-License-Identifier: Apache-2.0
"""Backend of crossmem for boards that do not exist: their memory is a file without a name."""
