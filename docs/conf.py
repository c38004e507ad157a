# SPDX-License-Identifier: Apache-2.0
"""Settings of the documentation."""

from importlib.metadata import version as version_of

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import crossmem
import crossmem.driver
import crossmem.models
import crossmem.plugin

project = "crossmem"
author = "The crossmem developers"
version = release = version_of("crossmem")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = False

nitpick_ignore_regex = [
    ("py:class", r"crossmem\.driver\.recording\._T"),
    # Names of other projects.
    ("py:(class|exc)", r"(?!crossmem\.).*"),
    # Classes of arguments. Only crossmem calls the constructors that take these arguments.
    ("py:class", r"crossmem\.(control|settings|sharing|trees)\..*"),
    # Fields of dataclasses are documented as parameters.
    ("py:attr", r"(Backend|Block)\..*"),
    # References in a docstring that crossmem inherits from pluggy.
    ("py:meth", r"PluginManager\..*"),
]

html_theme = "furo"
html_title = f"crossmem {version}"

# Users import the API from these modules. The reference shows each public name as a member of one
# of these modules: of the module whose ``__all__`` contains the name.
PUBLIC_MODULES = (crossmem, crossmem.driver, crossmem.models, crossmem.plugin)


def resolve_public_name(
    app: Sphinx, environment: BuildEnvironment, node: pending_xref, text: Element
) -> Element | None:
    """Link a class to its public name: ``crossmem.sharing.device.Device`` to ``crossmem.Device``.

    Annotations name a class by the module that defines it. Return None if the class has no public
    name.
    """
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    for module in PUBLIC_MODULES:
        if target.startswith("crossmem.") and name in module.__all__:
            public = f"{module.__name__}.{name}"
            if public == target:
                continue
            domain = environment.domains.python_domain
            return domain.resolve_xref(
                environment, node["refdoc"], app.builder, "obj", public, node, text
            )
    return None


def setup(app: Sphinx) -> None:
    """Register the resolver of this file with Sphinx."""
    app.connect("missing-reference", resolve_public_name)
