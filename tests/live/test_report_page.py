"""A page of ``planner report`` in headless Chromium: dark and light, on a phone and a screen, and by keyboard."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.started,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.usefixtures("clean_place"),
]
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
SPLIT = ("--network", "gpt:layers=24,hidden=2048,heads=16", "--cluster", "dgx-h100", "--framework", "megatron")
SMALLER = ("--precision", "bf16", "--nodes", "1,2,4", "--tensor", "1,2", "--pipeline", "2", "--top", "3")
ANSWERS = {
    "split": ("suggest", *SPLIT, *SMALLER, "--target-batch", "256", "--json"),
    "asynchronous": ("suggest", "--target-batch", "138", "--json"),
}
CHARTS = ("step", "intervals", "memory", "sweep", "front", "roofline")
LOOK = """(() => {
  const luminance = text => {
    const linear = text.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255).map(
      x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const contrast = (node, colour) => {
    const [a, b] = [luminance(colour), luminance(behind(node))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const seen = node => node.getClientRects().length > 0;
  const own = node => [...node.childNodes].some(one => one.nodeType === 3 && one.data.trim());
  const words = [...document.querySelectorAll('body *')].filter(node => seen(node) && own(node));
  const colour = node => getComputedStyle(node)[node instanceof SVGElement ? 'fill' : 'color'];
  const charts = {};
  for (const figure of document.querySelectorAll('figure')) {
    const box = figure.querySelector('svg').getBoundingClientRect();
    const marks = [...figure.querySelectorAll('svg path, svg use')].filter(one => {
      const {width, height} = one.getBoundingClientRect();
      return width + height > 1 && one.closest('[id*="patch"], [id*="line2d"], [id*="PathCollection"]');
    });
    const keys = [...figure.querySelectorAll('ul i')].map(
      one => contrast(figure, getComputedStyle(one).backgroundColor));
    charts[figure.id] = {
      marks: marks.length, width: box.width, keys: Math.min(...keys),
      letters: Math.min(...[...figure.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)),
      outside: [...figure.querySelectorAll('svg text')].filter(one => {
        const text = one.getBoundingClientRect();
        return text.left < box.left - 1 || text.right > box.right + 1;
      }).map(one => one.textContent),
      rows: figure.querySelectorAll('tbody tr').length,
    };
  }
  return {
    charts,
    overflow: document.documentElement.scrollWidth - innerWidth,
    contrast: Math.min(...words.map(node => contrast(node, colour(node)))),
    worst: words.filter(node => contrast(node, colour(node)) < 4.5).map(node => node.textContent.slice(0, 40)),
    paper: getComputedStyle(document.body).backgroundColor,
    plans: [...document.querySelectorAll('#plans tbody tr')].map(one => one.cells[0].textContent),
    focusable: [...document.querySelectorAll('a[href], summary, [tabindex="0"]')].filter(
      one => one.checkVisibility()).length,
  };
})()"""
FOCUSED = """(() => {
  const one = document.activeElement;
  if (one === document.body) return '';
  const all = [...document.querySelectorAll('*')];
  return all.indexOf(one) + (getComputedStyle(one).outlineStyle === 'none' ? ' unseen' : '');
})()"""


class Browser:
    """Chromium, told what to do over its pipe; what pages ask for and complain of is in ``events``."""

    def __init__(self, folder: Path) -> None:
        there, self._commands = os.pipe()
        self._answers, back = os.pipe()
        words = [
            "bash",
            "-c",
            f'exec "$@" 3<&{there} 4>&{back}',
            "bash",
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={folder}",
        ]
        self._process = subprocess.Popen(
            words, pass_fds=(there, back), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(there)
        os.close(back)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for name in ("Page", "Runtime", "Log", "Network"):
            self(f"{name}.enable")

    def close(self) -> None:
        """End it."""
        self._session = ""
        self("Browser.close")
        self._process.wait(20)
        os.close(self._commands)
        os.close(self._answers)

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return what a method answers."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        command |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + 30
        while b"\0" not in self._buffer:
            assert select.select([self._answers], [], [], max(end - time.monotonic(), 0.0))[0], "no answer of Chromium"
            self._buffer += os.read(self._answers, 1 << 16)
        one, _, self._buffer = self._buffer.partition(b"\0")
        event: dict[str, Any] = json.loads(one)
        return event

    def show(self, path: Path, width: int, scheme: str) -> None:
        """Load a page; ``scheme``: dark or light."""
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        self.events.clear()
        self("Page.navigate", url=path.as_uri())
        while not any(one["method"] == "Page.loadEventFired" for one in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def tab(self) -> None:
        """Press the key."""
        for kind in ("rawKeyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def picture(self, path: Path) -> None:
        """Write what is seen."""
        shot = self("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = Browser(tmp_path_factory.mktemp("chromium"))
    yield one
    one.close()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_page_is_whole_and_readable_everywhere(
    run: Callable[..., tuple[int, str, str]], browser: Browser, tmp_path: Path, name: str
) -> None:
    plan, page = tmp_path / "plan.json", tmp_path / "page.html"
    plan.write_text(run(*ANSWERS[name])[1])
    assert run("report", str(plan), "-o", str(page))[0] == 0
    positions = [str(one["position"]) for one in json.loads(plan.read_text())["plans"]]
    papers = set()
    for scheme in ("light", "dark"):
        for width in (375, 1280):
            browser.show(page, width, scheme)
            seen = browser.value(LOOK)
            where = f"{name} {scheme} {width}"
            if folder := os.environ.get("PAGES_FOLDER"):
                browser.picture(Path(folder) / f"{where.replace(' ', '-')}.png")
            asked = [
                one["params"]["request"]["url"]
                for one in browser.events
                if one["method"] == "Network.requestWillBeSent"
            ]
            assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()], where
            complaints = [
                one for one in browser.events if one["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
            ]
            assert not complaints, where
            assert seen["overflow"] <= 0, where
            assert seen["plans"] == positions, where
            assert not seen["worst"], where
            assert tuple(seen["charts"]) == CHARTS, where
            for chart, one in seen["charts"].items():
                assert one["marks"] >= 5, (where, chart)
                assert one["keys"] >= 3, (where, chart)
                assert one["width"] >= 300, (where, chart)
                assert one["letters"] >= 9, (where, chart)
                assert not one["outside"], (where, chart)
                assert one["rows"] >= (len(positions) if chart in ("step", "intervals", "memory") else 1), (
                    where,
                    chart,
                )
            papers.add(seen["paper"])
    assert len(papers) == 2
    reached = set()
    for _ in range(seen["focusable"] + 1):
        browser.tab()
        reached.add(browser.value(FOCUSED))
    reached.discard("")
    assert len(reached) == seen["focusable"]
    assert not any("unseen" in one for one in reached)
