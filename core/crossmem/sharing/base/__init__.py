# SPDX-License-Identifier: Apache-2.0
"""The common base of exporters and importers: process state, devices, memory, deferred work."""
