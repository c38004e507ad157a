# SPDX-License-Identifier: Apache-2.0
"""What exporters and importers share: the process's state, devices, memory, the ends of objects."""
