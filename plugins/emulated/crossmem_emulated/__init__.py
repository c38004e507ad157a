# SPDX-License-Identifier: Apache-2.0
"""The plugin for host memory, for simulated devices, and for emulations of HIP, CUDA and ACL."""
