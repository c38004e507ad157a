# SPDX-License-Identifier: Apache-2.0
"""What the tests of trees have in common."""

import sys
from pathlib import Path

# They import tree_classes.
sys.path.insert(0, str(Path(__file__).parent))
