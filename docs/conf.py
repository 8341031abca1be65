"""The documentation as a site: Sphinx, Markdown by MyST, the theme of Jupyter's own documentation.

`make docs` builds it into `docs/_build/html` with warnings as errors. Nothing is fetched while it
is built or read (`_extensions/offline.py`); drawings and the table of imports are made at the
beginning of each build (`_extensions/drawings`).
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE / "_extensions"))

project = "jgpu"
author = "the jgpu contributors"
copyright = "the jgpu contributors"  # noqa: A001
html_title = "jgpu"

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design", "drawings", "offline"]
exclude_patterns = ["_build", "_made"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
#: headings down to this depth can be linked to, as `page.md#heading`
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}
html_show_sphinx = False
html_show_sourcelink = False
html_sidebars = {"index": [], "glossary": []}
html_theme_options = {
    "logo": {"text": "jgpu"},
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
}
