# SPDX-License-Identifier: Apache-2.0
"""What exporting and importing stand on: the process, its devices, memory and how objects end."""
