# SPDX-License-Identifier: Apache-2.0
"""The base of exporting and importing: the process, its devices, memory and ends of objects."""
