// What the theme lacks for those who read with a screen reader or with the keyboard alone.
const mend = () => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) {
    nav.setAttribute("role", "none"); // the copy buttons are no landmarks
  }
  for (const nav of document.querySelectorAll("nav.md-path[aria-label='Navigation']")) {
    nav.setAttribute("aria-label", "Breadcrumbs"); // or two landmarks have one name
  }
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    wide.tabIndex = 0; // so that the arrow keys scroll a wide table
  }
  for (const corner of document.querySelectorAll("th:empty:not([role])")) {
    corner.setAttribute("role", "cell"); // it heads nothing
  }
};
new MutationObserver(mend).observe(document.documentElement, { childList: true, subtree: true });
