"""Hooks of MkDocs: pages that are not files of docs/, and links that lead where they lead on GitHub.

    api/PACKAGE.md          one entry for each public name, made of its docstring
    start.md ...            README, CONTRIBUTING and CHANGELOG of the repository
    source/PATH.md          each source file that a document links to

Documents stay plain Markdown: a relative link is that of the repository, and is rewritten to the page of its target. Equations,
which GitHub reads as TeX in blocks of `math`, become MathML, which browsers draw without a script.
"""

import importlib
import json
import posixpath
import re
from pathlib import Path
from xml.etree import ElementTree

from levada.algorithms.names import ALGORITHMS

ROOT = Path(__file__).resolve().parents[1]
MOVED = {"README.md": "start.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
ALGORITHM = (
    "::: {}\n    options: {{members: false}}\n\n::: {}\n    options: {{heading_level: 3, inherited_members: true}}"
)
"""The docstring of the module, with the paper; then the fields."""
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")


def entries(package):
    """Public name -> path of the object that is documented; one name in two packages is documented in the lower one."""
    if package == "levada.algorithms":
        return {home.partition(":")[2]: home.replace(":", ".") for home in ALGORITHMS.values()}
    return {name: f"{package}.{name}" for name in importlib.import_module(package).__all__ if not name.startswith("_")}


PACKAGES = [f"levada{name}" for name in (".flow", ".math", ".rl", ".runners", ".testing", ".errors", ".algorithms", "")]
"""In the order in which a name finds its page: it is documented in the first that has it."""


def reference():
    """Package -> its page. Each object has one entry; other packages that export it link there."""
    pages, documented = {}, {}
    for package in PACKAGES:
        own, links = [], []
        for name, path in entries(package).items():
            if name in documented:
                links.append(f"- [`{name}`]({documented[name]})")
            else:
                documented[name] = f"{package}.md#{path}"
                own.append(
                    f"::: {path}" if package != "levada.algorithms" else ALGORITHM.format(path.rpartition(".")[0], path)
                )
        intro = f"# {package}\n\n::: {package}\n    options: {{show_root_heading: false, members: false}}\n"
        also = ["Documented with the package that they belong to:\n", *links, ""] if links else []
        pages[package] = "\n".join([intro, *also, *(f"{entry}\n" for entry in own)])
    return pages


def on_files(files, config):
    """Add the pages that are made here."""
    from mkdocs.structure.files import File

    pages = {f"api/{package}.md": text for package, text in reference().items()}
    pages |= {page: (ROOT / name).read_text(encoding="utf-8") for name, page in MOVED.items()}
    for document in [*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in MOVED)]:
        for _, link, _ in LINK.findall(document.read_text(encoding="utf-8")):
            path = posixpath.relpath((document.parent / link).resolve(), ROOT)
            if path.endswith(".py"):
                source = (ROOT / path).read_text(encoding="utf-8")
                pages[page_of(path)] = f"# {path}\n\n````python\n{source}````\n"
            elif path.endswith(".ipynb"):
                pages[page_of(path)] = cells((ROOT / path).read_text(encoding="utf-8"))
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def cells(notebook):
    """The cells of a notebook as a page."""
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(notebook)["cells"]]
    return "\n\n".join(text if kind == "markdown" else f"````python\n{text}\n````" for kind, text in found) + "\n"


def on_page_markdown(markdown, page, config, files):
    """Rewrite relative links of documents, and their equations."""
    origins = {moved: name for name, moved in MOVED.items()}
    here = page.file.src_uri
    if here.startswith(("api/", "source/")):
        return markdown
    folder = posixpath.dirname(origins.get(here, f"docs/{here}"))

    def moved(found):
        start, link, rest = found.groups()
        if "://" in link:
            return found[0]
        target = page_of(posixpath.normpath(posixpath.join(folder, link)))
        return f"{start}{posixpath.relpath(target, posixpath.dirname(here) or '.')}{rest}"

    return MATH.sub(mathml, LINK.sub(moved, markdown))


def mathml(found):
    """MathML of a block of TeX."""
    from latex2mathml.converter import convert

    equation = convert(found[1].strip(), display="block")
    if "\\" in equation or ElementTree.fromstring(equation) is None:
        msg = f"not in latex2mathml's TeX: {found[1]}"
        raise ValueError(msg)
    return f'<div style="overflow-x: auto">{equation}</div>'


def page_of(path):
    """The page, or file, of the site that stands for a path in the repository."""
    if path in MOVED:
        return MOVED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"
