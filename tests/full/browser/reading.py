"""Helpers that find and use parts of the console's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def row(page: Page, name: str) -> Locator:
    """Return the row of an operation in the list."""
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name[-8:]))


def shows(page: Page, name: str, *texts: str) -> None:
    """Expect the row of an operation to contain these texts."""
    from playwright.sync_api import expect

    for text in texts:
        expect(row(page, name)).to_contain_text(text)


def act(page: Page, verb: str) -> None:
    """Press the button of a verb and confirm in the dialog."""
    page.get_by_role("button", name=f"{verb}…").click()
    dialog(page).get_by_role("button", name=f"Yes, {verb.lower()}").click()


def open_operation(page: Page, name: str) -> None:
    """Open an operation from the list."""
    row(page, name).get_by_role("link").click()


def tab(page: Page, label: str) -> Locator:
    """Return a tab of an operation's view."""
    return page.get_by_role("tab", name=label)


def panel(page: Page) -> Locator:
    return page.get_by_role("tabpanel")


def dialog(page: Page) -> Locator:
    """Return the open dialog."""
    return page.get_by_role("dialog")
