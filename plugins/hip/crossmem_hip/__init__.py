# SPDX-License-Identifier: Apache-2.0
"""Memory of AMD and NVIDIA GPUs as two backends of crossmem, whose APIs have the same functions."""
