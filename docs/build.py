"""Lays the pages out for Zensical and builds the site that `autolabel docs` opens: `make docs`.

Pages link each other as files of the repository. The site has them in one folder, so links lose
their folders; a link to a file that is no page would lead nowhere and ends the build. The reference
of the command line is made here, from the commands themselves: where a page says `autolabel label
--help`, the site has a link to that section.

`python docs/build.py FOLDER` only lays the pages out there.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click

from flows.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
# Pages elsewhere than in docs/, and their names on the site.
OTHERS = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "DECISIONS.md": "DECISIONS.md",
    "sam2_core/weights/README.md": "MODEL_CARD.md",
}
SITE = ROOT / "flows" / "site"
SHIM = "https://unpkg.com/iframe-worker/shim"
PICTURES = {".jpg", ".png", ".webp"}
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
_HELP = re.compile(r"`autolabel ((?:[a-z-]+ )+)--help`")
_REFERENCE = """# Command line

What `--help` says of every command. What the options of `label` mean in full is in
[Labeling](labeling.md).
"""


def lay_out(pages: Path = PAGES) -> None:
    """Copy pages and pictures to a folder, with links as they are there.

    Raises:
        SystemExit: a page links a file that is not on the site.

    """
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(
        ROOT / "docs", pages,
        ignore=shutil.ignore_patterns("*.py", "*.js", "*.toml", "__pycache__"),
    )  # fmt: skip
    names = {(ROOT / path).resolve(): name for path, name in OTHERS.items()}
    names |= {
        path.resolve(): str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*")
    }
    for page, name in list(names.items()):
        if page.suffix != ".md":
            continue

        def on_site(match: re.Match[str], page: Path = page) -> str:
            target = (page.parent / match[1]).resolve()
            if target.suffix in PICTURES and target not in names:
                shutil.copy(target, pages / "images")
                names[target] = f"images/{target.name}"
            if target not in names:
                sys.exit(f"{page.relative_to(ROOT)} links {match[1]}, which the site does not have")
            return f"]({names[target]}{match[2] or ''})"

        text = _LINK.sub(on_site, page.read_text())
        (pages / name).write_text(_HELP.sub(_to_reference, text))
    (pages / "cli.md").write_text("\n".join([_REFERENCE, *_sections("autolabel", cli)]))


def _to_reference(match: re.Match[str]) -> str:
    return f"[{match[0]}](cli.md#autolabel-{match[1].strip().replace(' ', '-')})"


def _sections(name: str, command: click.Command, parent: click.Context | None = None) -> list[str]:
    """Return the help of a command and of those in it, a section each."""
    context = click.Context(
        command,
        parent=parent,
        info_name=name,
        max_content_width=100,
        terminal_width=100,
        **command.context_settings,
    )
    section = f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if not isinstance(command, click.Group):
        return [section]
    names = command.list_commands(context)
    inner = [(name, command.get_command(context, name)) for name in names]
    return [
        section,
        *(part for name, sub in inner if sub for part in _sections(name, sub, context)),
    ]


def bring_shim() -> None:
    """Let pages read the shim, without which they have no search as files, from beside them."""
    shutil.copy(Path(__file__).with_name("iframe-worker.js"), SITE / "assets" / "javascripts")
    for page in SITE.glob("*.html"):
        page.write_text(page.read_text().replace(SHIM, "assets/javascripts/iframe-worker.js"))


if __name__ == "__main__":
    if sys.argv[1:]:
        lay_out(Path(sys.argv[1]))
        sys.exit()
    lay_out()
    shutil.copy(ROOT / "docs" / "zensical.toml", BUILD)
    zensical = Path(sys.executable).with_name("zensical")
    # Strict: a link or an anchor that is not there ends it.
    subprocess.run([zensical, "build", "--clean", "--strict"], cwd=BUILD, check=True)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.move(BUILD / "site", SITE)
    bring_shim()
