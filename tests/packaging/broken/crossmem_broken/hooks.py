# SPDX-License-Identifier: Apache-2.0
"""Fails the way ctypes does where a library is missing."""

raise OSError("libbroken.so.1: cannot open shared object file")
