"""Words that every message shares."""

import pytest
from markdown_it import MarkdownIt

from flows.server.artifacts import summary_markdown
from tasks.wording import counted, plain

NASTY = (
    "[a](http://evil.example)", "![i](http://evil.example/p.png)", "<img src=x onerror=alert(1)>",
    "` [b](http://evil.example) ``` [c](http://evil.example)", "a | b", "a\n\n# b\n<script>",
)  # fmt: skip


def test_one_is_singular() -> None:
    assert [counted(count, "frame") for count in (0, 1, 2)] == ["0 frames", "1 frame", "2 frames"]
    assert [counted(count, "box", "boxes") for count in (1, 12345)] == ["1 box", "12,345 boxes"]


@pytest.mark.parametrize("name", NASTY)
def test_names_and_reasons_of_others_are_only_text_on_prefects_pages(name: str) -> None:
    summary = dict.fromkeys(
        ("frames", "skipped", "instances", "rejected", "tracks", "sequences"), 0
    )
    summary |= {"seconds": {}, "failed": [{"stage": "open", "reason": name}], "boxes": name}
    summary |= {"out": name, "dataset": name, "model": {"name": name, "backend": "torch"}}
    markdown = MarkdownIt("commonmark").enable("table")
    for page in (summary_markdown(summary), plain(name)):
        shown = markdown.render(page)
        assert not any(
            tag in shown for tag in ("<a ", "<img", "<script", 'evil.example"', "b</h1>")
        )
