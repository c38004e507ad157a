# SPDX-License-Identifier: Apache-2.0
"""Host memory of Linux as a backend of crossmem."""
