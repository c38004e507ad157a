# SPDX-License-Identifier: Apache-2.0
"""The backends for AMD and NVIDIA GPUs. The two vendors' APIs have almost the same functions."""
