"""Texts that do harm if a page treats them as anything but text."""

from __future__ import annotations

from itertools import product
from typing import Final

RUN: Final = "window.pwned=1;alert(1)"
"""The script that replaces RUN in the tables below; tests can detect both of its effects."""

_TAGS: Final = (
    "<script>RUN</script>",
    "</script><script>RUN</script>",
    "<img src=x onerror=RUN>",
    "<svg onload=RUN>",
    "<svg><animate onbegin=RUN attributeName=x dur=1s>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=RUN>",
    "<iframe srcdoc='<script>parent.RUN</script>'></iframe>",
    "<object data=javascript:RUN></object>",
    "<a href=javascript:RUN autofocus onfocus=RUN>x</a>",
    "<details open ontoggle=RUN>",
    "<video><source onerror=RUN></video>",
    "<base href=//evil.test/>",
    "<meta http-equiv=refresh content='0;url=javascript:RUN'>",
    "<style>@import '//evil.test/a.css';</style>",
    "<form action=//evil.test><button>",
    "<template><script>RUN</script></template>",
    "<![CDATA[<script>RUN</script>]]>",
    "<noscript><p title='</noscript><img src onerror=RUN>'>",
)
_OUT_OF: Final = ("", '"', "'", "`", '">', "'>", "-->", "</title>", "</textarea>", "]]>")
_HANDLERS: Final = ("onerror", "onload", "onfocus", "onanimationstart", "onclick", "ontoggle")
_SCHEMES: Final = (
    "javascript:RUN",
    " javascript:RUN",
    "\x01javascript:RUN",
    "java\nscript:RUN",
    "java\tscript:RUN",
    "javascript&colon;RUN",
    "data:text/html,<script>RUN</script>",
    "data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==",
    "blob:null/RUN",
    "//evil.test/x",
    "https://evil.test\\@good.test",
    "http://[evil",
    'https://evil.test/"onclick=RUN',
)
_TEMPLATES: Final = (
    "{{constructor.constructor('RUN')()}}",
    "${RUN}",
    "{0}{1}{2}",
    "$& $1 $$ $`",
    "%RUN%n%x",
    "\\u003cscript>RUN</script>",
    "&lt;script&gt;RUN&lt;/script&gt;",
    "&#x3c;img src onerror=RUN&#x3e;",
    "%3Cscript%3ERUN%3C/script%3E",
)
_STYLES: Final = (
    "red;background:url(//evil.test/a.png)",
    "} * { display: none }",
    "x{RUN}@import'//evil.test/a.css';",
)
_KEYS: Final = (
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "then",
    "innerHTML",
    "@type",
)
_SIGNS: Final = (
    "\u202egnp.exe\u202c",
    "\u2066\u2067isolated\u2069\u2069",
    "zero\u200bwidth\u200d\ufeffsigns",
    "a" + "\u0301" * 400,
    "\u2028line\u2029paragraph",
    "\ufdfd" * 40,
    "👨‍👩‍👧‍👦" * 60,
    "x" * 5_000,
    "",
    "\t\r\n\x0b\x0c",
    "\x7f\x80\x9f",
    "null",
    "undefined",
    "[object Object]",
    "0",
    "9007199254740993",
    ".",
    "../../session",
    "operations/..%2f..%2fsession",
    "?filter=x#/overview",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
)


def hostile_texts() -> list[str]:
    """Return at least 200 distinct hostile texts."""
    found = [*_TAGS, *_SCHEMES, *_TEMPLATES, *_STYLES]
    found += [f"{way}<img src=x onerror=RUN>" for way in _OUT_OF]
    found += [
        f"{way}{space}{on}=RUN x={way}" for way, on, space in product(_OUT_OF, _HANDLERS, " /")
    ]
    return list(dict.fromkeys([*(one.replace("RUN", RUN) for one in found), *_KEYS, *_SIGNS]))
