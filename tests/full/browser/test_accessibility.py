"""axe-core finds no violation in any state of the page, in both themes, narrow and wide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.full.browser.conftest import Browser, Page, window
from tests.full.browser.scenes import Shown, one_of_each, scenes

pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python")

RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LOOKS: Final = [("light", 1280), ("dark", 320), ("dark", 1280), ("light", 320)]
RUN: Final = """async ([tags, only]) => {
    const what = only ? {type: "rule", values: ["color-contrast"]} : {type: "tag", values: tags};
    const found = await axe.run(document, {runOnly: what, resultTypes: ["violations"]});
    return found.violations.flatMap((rule) => rule.nodes.map((node) =>
        `${rule.id}: ${node.html.slice(0, 160)}: ${node.failureSummary}`));
}"""
BROKEN: Final = """() => [...document.querySelectorAll("[role=tab], nav a, .acts button, .chip")]
    .filter((each) => each.checkVisibility() && each.offsetHeight > 40)
    .map((each) => each.textContent)"""
"""A script that returns the labels that take more than one line."""

QUIET: Final = "*, *::before { animation: none !important; transition: none !important; }"
NAMES: Final = [scene.name for scene in scenes(dict.fromkeys(
    ("moving", "stopping", "waiting", "failed", "succeeded", "cancelled"), ""
))]  # fmt: skip


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    """A console with operations in each state."""
    with one_of_each() as made:
        yield made


@pytest.fixture
def bare(browser: Browser) -> Iterator[Page]:
    """A page that bypasses the console's content security policy, so that axe's scripts can run."""
    with window(browser, bypass_csp=True) as context:
        yield context.new_page()


@pytest.mark.parametrize("name", NAMES)
def test_state_of_the_page_is_accessible(bare: Page, shown: Shown, name: str) -> None:
    """The page meets WCAG 2.2 AA and best practices; at 320 px it does not scroll horizontally."""
    (scene,) = (one for one in scenes(shown.names) if one.name == name)
    found: list[str] = []
    scene.before(bare)
    bare.goto(shown.site + scene.path)
    bare.get_by_text(scene.shows).first.wait_for(state="attached")
    scene.then(bare)
    bare.add_style_tag(content=QUIET)
    bare.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
    for at, (theme, width) in enumerate(LOOKS):
        bare.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        bare.set_viewport_size({"width": width, "height": 900})
        found += [f"{theme} {width}: {one}" for one in bare.evaluate(RUN, [RULES, at > 1])]
        sideways = bare.evaluate("document.documentElement.scrollWidth - innerWidth")
        broken = bare.evaluate(BROKEN)
        found += [f"{theme} {width}: the label {one} is broken" for one in broken]
        if sideways > 0:
            found.append(f"{theme} {width}: {sideways} pixels go sideways")
    assert not found, "\n".join(found)
