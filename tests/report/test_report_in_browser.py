"""The report in a real browser: nothing breaks, nothing is loaded, nothing sticks out."""

import json
import re
import subprocess

import pytest
from matplotlib.image import imread

from tacit.report.html import write_report

HARNESS = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body>
<iframe width="360" height="800" src="{page}"></iframe>
<iframe width="1280" height="800" src="{page}"></iframe>
<pre id="found"></pre>
<script>
addEventListener("load", () => {{
  const found = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
    const drawings = [...page.querySelectorAll("svg")];
    return {{
      width: view.innerWidth, scroll: root.scrollWidth, title: page.title,
      broken: [...page.images].filter((image) => !image.naturalWidth).length,
      drawings: drawings.length,
      empty: drawings.filter((drawing) => drawing.getBoundingClientRect().height < 50).length,
      small: [...page.querySelectorAll("svg text")].filter((t) => t.getBoundingClientRect().height < 9).length,
      loaded: view.performance.getEntriesByType("resource").map((entry) => entry.name),
      unnamed: drawings.filter((drawing) => !drawing.getAttribute("aria-label")).length,
      lost: [...page.querySelectorAll("nav a")].filter((a) => !page.querySelector(a.hash)).length,
    }};
  }});
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>"""  # noqa: E501


def run(chromium, *arguments):
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    offline = ("--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND")
    return subprocess.run(
        [chromium, *flags, *offline, "--enable-logging=stderr", "--log-level=0", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


@pytest.fixture(params=["full", "bare"])
def page(request):
    return write_report(request.getfixturevalue(f"{request.param}_run"))


def test_the_page_is_whole_at_phone_and_desktop_width(chromium, page, tmp_path):
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS.format(page=page.as_uri()))
    seen = run(
        chromium, "--allow-file-access-from-files", "--window-size=1700,900", "--dump-dom",
        harness.as_uri(),
    )  # fmt: skip
    text = re.search(r'<pre id="found">(.*?)</pre>', seen.stdout, re.DOTALL)[1]
    found = json.loads(text.replace("&amp;", "&"))
    assert [frame["width"] for frame in found] == [360, 1280]
    for frame in found:
        assert frame["title"].endswith("tacit report")
        assert frame["scroll"] <= frame["width"]
        assert frame["drawings"] >= 2
        assert frame["loaded"] == []
        assert not any(frame[bad] for bad in ("broken", "empty", "small", "unnamed", "lost"))
    assert "CONSOLE" not in seen.stderr, seen.stderr


def test_the_page_follows_the_readers_choice_of_dark_or_light(chromium, bare_run, tmp_path):
    page = write_report(bare_run)
    brightness = {}
    for scheme, number in (("dark", 0), ("light", 1)):
        picture = tmp_path / f"{scheme}.png"
        run(
            chromium, f"--blink-settings=preferredColorScheme={number}", "--window-size=800,600",
            f"--screenshot={picture}", page.as_uri(),
        )  # fmt: skip
        brightness[scheme] = float(imread(picture)[:, :, :3].mean())
    assert brightness["dark"] < 0.3
    assert brightness["light"] > 0.7
