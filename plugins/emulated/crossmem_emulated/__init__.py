# SPDX-License-Identifier: Apache-2.0
"""The plugin of host memory and simulated devices, and of the emulations of HIP, CUDA and ACL."""
