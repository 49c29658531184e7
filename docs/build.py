"""Lays the pages out for Zensical and builds the site that `autolabel docs` opens: `make docs`.

Pages link each other as files of the repository. The site has them in one folder, so links lose
their folders; a link to a file that is no page would lead nowhere and ends the build.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
# Pages elsewhere than in docs/, and their names on the site.
OTHERS = {
    "README.md": "index.md",
    "BENCHMARKS.md": "BENCHMARKS.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "DECISIONS.md": "DECISIONS.md",
    "sam2_core/weights/README.md": "MODEL_CARD.md",
}
SITE = ROOT / "flows" / "site"
SHIM = "https://unpkg.com/iframe-worker/shim"
PICTURES = {".jpg", ".png", ".webp"}
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def lay_out() -> None:
    """Copy pages and pictures to PAGES, with links as they are there.

    Raises:
        SystemExit: a page links a file that is not on the site.

    """
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(
        ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.py", "*.js", "__pycache__")
    )
    names = {(ROOT / one).resolve(): name for one, name in OTHERS.items()}
    names |= {
        one.resolve(): str(one.relative_to(ROOT / "docs")) for one in (ROOT / "docs").rglob("*")
    }
    for page, name in list(names.items()):
        if page.suffix != ".md":
            continue

        def on_site(match: re.Match[str], page: Path = page) -> str:
            target = (page.parent / match[1]).resolve()
            if target.suffix in PICTURES and target not in names:
                shutil.copy(target, PAGES / "images")
                names[target] = f"images/{target.name}"
            if target not in names:
                sys.exit(f"{page.relative_to(ROOT)} links {match[1]}, which the site does not have")
            return f"]({names[target]}{match[2] or ''})"

        (PAGES / name).write_text(_LINK.sub(on_site, page.read_text()))


def bring_shim() -> None:
    """Let pages read the shim, without which they have no search as files, from beside them."""
    shutil.copy(Path(__file__).with_name("iframe-worker.js"), SITE / "assets" / "javascripts")
    for page in SITE.glob("*.html"):
        page.write_text(page.read_text().replace(SHIM, "assets/javascripts/iframe-worker.js"))


if __name__ == "__main__":
    lay_out()
    zensical = Path(sys.executable).with_name("zensical")
    # Strict: a link or an anchor that is not there ends it.
    subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT, check=True)
    bring_shim()
