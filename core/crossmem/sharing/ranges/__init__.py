# SPDX-License-Identifier: Apache-2.0
"""Address ranges: addresses that are reserved first and mapped later."""
