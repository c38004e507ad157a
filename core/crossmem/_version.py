# SPDX-License-Identifier: Apache-2.0
"""The version of crossmem. The build and `crossmem.__version__` read it from this file."""

__version__ = "0.1.0"
