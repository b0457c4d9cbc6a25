"""The documentation site: Sphinx, MyST, furo. Neither building nor reading it needs the network."""

import re
from importlib import metadata
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

project = "PDML"
release = metadata.version("pdml")
html_title = f"PDML {release}"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide_tables.css"]
html_show_copyright = False
html_math_renderer = "mathml"
exclude_patterns = ["_build"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"

SPELLED_OTHERWISE = {r"\\[bB]igg?[lr]?(?![a-zA-Z])": "", r"\\dots(?![a-zA-Z])": r"\\ldots"}
"""TeX that docutils does not know; MathML's brackets grow by themselves."""


def write_formula(self: Any, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers draw by themselves."""
    tex = node.astext()
    for pattern, instead in SPELLED_OTHERWISE.items():
        tex = re.sub(pattern, instead, tex)
    try:
        self.body.append(tex2mathml(tex, as_block=isinstance(node, nodes.math_block)))
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", tex, error, location=node)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Take the place of MathJax, which would come over the network."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
