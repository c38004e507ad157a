# SPDX-License-Identifier: Apache-2.0
"""Memory of AMD and NVIDIA GPUs as two backends of crossmem. Their APIs have one shape."""
