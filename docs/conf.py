"""Sphinx settings of the documentation site: `python -m sphinx -W -c docs . build/site`.

The source folder is the repository, so that links between docs/, results/ and CONTRIBUTING.md are the same on the site
and on a code host.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import site_pages  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import vitmix  # noqa: E402

ROOT = Path(__file__).parents[1]
site_pages.write(ROOT / "docs" / "generated")

project, author = "vitmix", "The vitmix maintainers"
copyright = author
version = release = vitmix.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "results/**.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = [
    ".*",
    "*.egg-info",
    "build",
    "dist",
    "runs",
    "comparisons",
    "src",
    "tests",
    "benchmarks",
    "notebooks",
]
highlight_language = "none"
default_role = "code"  # docstrings write names in single backticks
myst_heading_anchors = 4

autodoc_inherit_docstrings = False  # a part documents what it adds; its base class documents the rest
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "all"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = True
python_display_short_literal_types = True
python_use_unqualified_type_names = True
smartquotes_action = "D"  # dashes only: quotes in docstrings are those of Python
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"vitmix {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "to_front.html"}  # the front page is docs/index.html
html_sidebars = {"docs/index": [], "docs/start": [], "docs/which_method": [], "docs/design": []}  # have no pages below
html_copy_source = html_show_sourcelink = False
html_show_search_summary = False  # the browser may not fetch pages that it opened from files
html_context = {"default_mode": "auto"}  # light or dark, as the system asks for
html_theme_options = {
    "logo": {"text": "vitmix"},
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}


def setup(app: Sphinx) -> None:
    app.connect("source-read", site_pages.adapt)
