"""The page of labs in a real browser, as wide as a laptop and as narrow as a phone: nothing sticks out, nothing is
empty, and nothing is asked of the network."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from qkv import labs
from qkv.labs.report import page
from qkv.labs.runner import run_lab

pytestmark = pytest.mark.browser
WIDTHS = (360, 1366)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=20000",
)  # fmt: skip
PROBE = """<!doctype html><body><script>
const widths = WIDTHS, found = [];
async function look(width) {
  const frame = document.createElement("iframe");
  frame.style.width = width + "px"; frame.style.height = "800px"; frame.style.border = 0; frame.src = "report.html";
  const loaded = new Promise(done => frame.onload = done);
  document.body.append(frame); await loaded;
  const inside = frame.contentDocument, wide = inside.documentElement;
  const scrolls = one => one.closest(".table, .formula, .picture svg");
  const out = [...inside.body.querySelectorAll("*")].filter(one => !scrolls(one)
    && one.getBoundingClientRect().right > width + 1).map(one => one.tagName + " " + one.textContent.slice(0, 40));
  const pictures = [...inside.querySelectorAll(".picture svg")].map(one => one.getBoundingClientRect())
    .map(box => [Math.round(box.width), Math.round(box.height)]);
  const letters = parseFloat(frame.contentWindow.getComputedStyle(inside.body).fontSize);
  found.push({width, page: wide.scrollWidth, out, pictures, letters,
    asked: frame.contentWindow.performance.getEntriesByType("resource").map(one => one.name)});
}
(async () => { for (const width of widths) await look(width);
  document.body.innerHTML = "<pre>" + JSON.stringify(found).replace(/</g, "&lt;") + "</pre>"; })();
</script></body>"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a page of some labs is served, with one beside it that measures it."""
    folder = tmp_path_factory.mktemp("page")
    results = [run_lab(labs.load(name)) for name in ("softmax", "count", "depth", "xor", "mask", "context")]
    (folder / "report.html").write_text(page(results, "Labs", "Measured here."), encoding="utf-8")
    (folder / "probe.html").write_text(PROBE.replace("WIDTHS", json.dumps(WIDTHS)), encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs Chromium (Debian's package chromium)")
    assert found
    return found


def test_the_page_fits_a_laptop_and_a_phone(address: str, tmp_path: Path) -> None:
    command = [browser(), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"{address}/probe.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    shown = re.search(r"<pre>(.*)</pre>", done.stdout, re.DOTALL)
    assert shown, done.stdout[-2000:]
    for seen in json.loads(html.unescape(shown[1])):
        assert seen["page"] <= seen["width"], seen["out"]
        assert seen["out"] == []
        assert len(seen["pictures"]) == 6
        # On a phone a picture is pushed sideways, not made so small that its letters cannot be read.
        assert all(width >= 640 and height > 200 for width, height in seen["pictures"])
        assert seen["letters"] >= 15
        assert seen["asked"] == []
