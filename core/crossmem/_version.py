# SPDX-License-Identifier: Apache-2.0
"""The version of crossmem: the build reads it from here, and so does `crossmem.__version__`."""

__version__ = "0.1.0"
