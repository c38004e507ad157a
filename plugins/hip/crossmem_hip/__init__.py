# SPDX-License-Identifier: Apache-2.0
"""Memory of AMD and NVIDIA GPUs as two backends. The vendors' APIs have the same functions."""
