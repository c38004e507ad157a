# SPDX-License-Identifier: Apache-2.0
"""Settings of the documentation."""

from importlib.metadata import version as version_of

project = "crossmem"
author = "The crossmem developers"
version = release = version_of("crossmem")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = False

html_theme = "furo"
html_title = f"crossmem {version}"
