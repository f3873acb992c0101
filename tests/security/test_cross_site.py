"""Requests from pages of other sites (spec §5.9(5))."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import pytest

import lro
from lro import asgi, wsgi
from tests.http import test_asgi, test_wsgi
from tests.http.counting_service import CountRequest, CountService, build, details_of
from tests.http.servers import environ_of_wsgiref

HOST = "api.example.com"
OWN = f"http://{HOST}"
EVIL = "https://evil.example"
APP = "https://app.example.com"
START = "/v1/things:count"

Headers = Iterable[tuple[str, str]]


@attrs.frozen
class Reply:
    """A reply: status code, headers with lower-case names, and the decoded body."""

    status: int
    headers: Mapping[str, str]
    body: Any


def call_asgi(
    app: Any, method: str, path: str, headers: Headers, scheme: str, body: bytes
) -> Reply:
    """Return the reply of an ASGI application, called as by a server."""
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope = test_asgi.scope_of(method, path, scheme=scheme, headers=sent)
    status, found, shown = test_asgi.serve(app, scope, test_asgi.part(body)).reply
    return Reply(status, {name.decode(): value.decode() for name, value in found.items()}, shown)


def call_wsgi(
    app: Any, method: str, path: str, headers: Headers, scheme: str, body: bytes
) -> Reply:
    """Return the reply of a WSGI application, called as by a server, which joins equal headers."""
    environ = test_wsgi.environ_of(method, path, body, **{"wsgi.url_scheme": scheme})
    for name, value in headers:
        key = "HTTP_" + name.upper().replace("-", "_")
        environ[key] = f"{environ[key]}, {value}" if key in environ else value
    return reply_of(app, environ)


def reply_of(app: Any, environ: dict[str, Any]) -> Reply:
    """Return the reply of a WSGI application."""
    status, heads, shown = test_wsgi.serve(app, environ)
    return Reply(int(status[:3]), {name.lower(): value for name, value in heads.items()}, shown)


EDGES: Mapping[str, tuple[Any, Callable[..., Reply]]] = {
    "asgi": (asgi, call_asgi),
    "wsgi": (wsgi, call_wsgi),
}


@attrs.frozen
class Site:
    """A service behind an ASGI or WSGI application."""

    counting: CountService
    app: Any
    send: Callable[..., Reply]

    def call(
        self, method: str, path: str, headers: Headers, scheme: str = "http", body: bytes = b"{}"
    ) -> Reply:
        """Send a request, with the name of a new operation for ``{name}`` in the path."""
        path = path.format(name=self.counting.start())
        return self.send(self.app, method, path, headers, scheme, body)

    def count(self) -> int:
        """Return the number of operations."""
        return len(self.counting.service.list(lro.wire.ListOperationsRequest()).operations)


@pytest.fixture(params=EDGES)
def serve(request: pytest.FixtureRequest) -> Callable[..., Site]:
    """A function that makes a site over ASGI or WSGI with these options of the edge."""
    module, send = EDGES[request.param]

    def serve(*trusted_origins: str, authenticate: Any = None) -> Site:
        counting = build()
        options: dict[str, Any] = {"trusted_origins": trusted_origins, "authenticate": authenticate}
        app = module.OperationsApp(counting.service, starts={START: counting.count}, **options)
        return Site(counting, app, send)

    return serve


CALLS = [("POST", START), ("POST", "/v1/{name}:cancel"), ("DELETE", "/v1/{name}")]
OTHERS = [
    ("POST", "/v1/{name}:wait", b'{"timeout": "0s"}'),
    *[
        ("POST", f"/v1/operations:{verb}", b'{"names": ["operations/x"]}')
        for verb in ("batchGet", "watch")
    ],
]


def check_refused(reply: Reply, origin: str = "") -> None:
    """Check that the reply is a 403 that names the origin and the option ``trusted_origins``."""
    assert (reply.status, reply.body["error"]["status"]) == (403, "PERMISSION_DENIED")
    info = details_of(reply.body)["ErrorInfo"]
    assert (info["reason"], info.get("metadata", {})) == (
        "CROSS_SITE_REQUEST",
        {"origin": origin} if origin else {},
    )
    assert "trusted_origins" in reply.body["error"]["message"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in reply.headers


PASSES: list[tuple[str, str, Headers]] = [
    ("no browser", "http", []),
    ("no browser, no host", "http", [("host", "")]),
    ("same-origin", "http", [("sec-fetch-site", "same-origin"), ("origin", OWN)]),
    ("same-origin behind a proxy", "http", [("sec-fetch-site", "same-origin"), ("origin", EVIL)]),
    ("typed by the user", "http", [("sec-fetch-site", "none")]),
    ("own origin", "http", [("origin", OWN)]),
    ("the origin's case", "http", [("origin", "HTTP://Api.Example.Com")]),
    ("the scheme's case", "HTTP", [("origin", OWN)]),
    ("own origin over TLS", "https", [("origin", f"https://{HOST}")]),
    ("default port in Host", "http", [("host", f"{HOST}:80"), ("origin", OWN)]),
    ("own port", "http", [("host", f"{HOST}:8000"), ("origin", f"{OWN}:8000")]),
    ("a proxy ends TLS", "http", [("origin", f"https://{HOST}")]),
    ("a proxy ends TLS, port", "http", [("host", f"{HOST}:443"), ("origin", f"https://{HOST}")]),
    ("IPv6, default port", "http", [("host", "[2001:DB8::1]"), ("origin", "http://[2001:db8::1]")]),
    ("trusted", "http", [("origin", APP)]),
    ("trusted, cross-site", "http", [("sec-fetch-site", "cross-site"), ("origin", APP)]),
    ("trusted, default port", "https", [("origin", f"{APP}:443")]),
]

REFUSED: list[tuple[str, str, Headers]] = [
    ("cross-site", "http", [("sec-fetch-site", "cross-site"), ("origin", EVIL)]),
    ("same-site", "http", [("sec-fetch-site", "same-site"), ("origin", "http://b.example.com")]),
    ("cross-site without Origin", "http", [("sec-fetch-site", "cross-site")]),
    ("cross-site, own origin", "http", [("sec-fetch-site", "cross-site"), ("origin", OWN)]),
    ("another word", "http", [("sec-fetch-site", "Same-Origin"), ("origin", OWN)]),
    (
        "two words",
        "http",
        [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site"), ("origin", OWN)],
    ),
    ("joined", "http", [("sec-fetch-site", "same-origin,cross-site"), ("origin", EVIL)]),
    ("another origin", "http", [("origin", EVIL)]),
    ("null", "http", [("origin", "null")]),
    ("empty Origin", "http", [("origin", "")]),
    ("two origins", "http", [("origin", OWN), ("origin", EVIL)]),
    ("a list of origins", "http", [("origin", f"{OWN} {EVIL}")]),
    ("two hosts", "http", [("host", HOST), ("host", "evil.example"), ("origin", EVIL)]),
    ("another port", "http", [("host", f"{HOST}:8000"), ("origin", OWN)]),
    ("port of the other scheme", "http", [("host", f"{HOST}:443"), ("origin", OWN)]),
    ("http at https", "https", [("origin", OWN)]),
    ("a longer name", "http", [("origin", f"{OWN}.evil.example")]),
    ("a user in Origin", "http", [("origin", f"http://{HOST}@evil.example")]),
    ("a user in Host", "http", [("host", f"{HOST}@evil.example"), ("origin", EVIL)]),
    ("own name as user", "http", [("host", f"u@{HOST}"), ("origin", f"http://u@{HOST}")]),
    ("a path in Origin", "http", [("origin", f"{OWN}/")]),
    ("a path in Host", "http", [("host", f"{HOST}/x"), ("origin", OWN)]),
    ("no scheme", "http", [("origin", HOST)]),
    ("no host", "http", [("host", ""), ("origin", "http://")]),
    ("an extension", "http", [("origin", f"chrome-extension://{HOST}")]),
    ("trusted by http only", "http", [("origin", "http://app.example.com")]),
    ("below a trusted one", "http", [("origin", "https://x.app.example.com")]),
    ("two trusted ones", "http", [("origin", APP), ("origin", APP)]),
    ("too long", "http", [("host", "a" * 400), ("origin", "http://" + "a" * 400)]),
]


def in_turn(cases: list[tuple[str, str, Headers]]) -> Any:
    return pytest.mark.parametrize(
        ("method", "path", "scheme", "headers"),
        [(*CALLS[n % len(CALLS)], *case[1:]) for n, case in enumerate(cases)],
        ids=[case[0] for case in cases],
    )


def with_host(headers: Headers) -> Headers:
    """Return the headers, with a Host header added if they have none."""
    headers = list(headers)
    return headers if any(name == "host" for name, _ in headers) else [("host", HOST), *headers]


@in_turn(PASSES)
def test_requests_of_own_or_trusted_pages_and_programs_are_accepted(
    serve: Callable[..., Site], method: str, path: str, scheme: str, headers: Headers
) -> None:
    """Requests from this server's pages, trusted origins and programs succeed."""
    site = serve(APP, "http://other.example:8000")
    assert site.call(method, path, with_host(headers), scheme).status == 200


@in_turn(REFUSED)
def test_requests_of_pages_of_other_sites_are_refused(
    serve: Callable[..., Site], method: str, path: str, scheme: str, headers: Headers
) -> None:
    site = serve(APP)
    reply = site.call(method, path, with_host(headers), scheme)
    origins = [value for name, value in headers if name == "origin"]
    origin = ", ".join(origins)
    check_refused(reply, origin if len(origin) <= 200 else origin[:200] + "...")
    assert site.count() == 1  # ``call`` made this operation
    names = site.counting.service.list(lro.wire.ListOperationsRequest(filter="done=true"))
    assert names.operations == ()


@pytest.mark.parametrize("first", ["Sec-Fetch-Site: cross-site", "sec_fetch_site: same-origin"])
def test_wsgi_header_with_underscores_does_not_hide_the_real_one(first: str) -> None:
    """wsgiref joins ``sec_fetch_site`` and ``Sec-Fetch-Site``; the request is still refused."""
    both = ("Sec-Fetch-Site: cross-site", "sec_fetch_site: same-origin")
    lines = sorted(both, key=lambda line: line != first)
    environ = environ_of_wsgiref("POST", START, *lines, f"Origin: {EVIL}")
    assert "same-origin" in environ["HTTP_SEC_FETCH_SITE"]
    counting = build()
    app = wsgi.OperationsApp(counting.service, starts={START: counting.count})
    check_refused(reply_of(app, environ), EVIL)


@pytest.mark.parametrize(("where", "origin"), [("cross-site", EVIL), ("same-site", "null")])
def test_cross_site_get_head_and_preflight_are_not_refused(
    serve: Callable[..., Site], where: str, origin: str
) -> None:
    """Cross-site GET, HEAD and OPTIONS are answered, but without headers that let the site read."""
    headers = [("host", HOST), ("sec-fetch-site", where), ("origin", origin)]
    for method, path, status in (
        ("GET", "/v1/{name}", 200),
        ("HEAD", "/v1/{name}", 200),
        ("GET", "/v1/operations", 200),
        ("OPTIONS", "/v1/{name}", 204),
        ("OPTIONS", START, 204),
        ("GET", START, 405),
    ):
        reply = serve().call(method, path, headers)
        assert reply.status == status
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert not any(name.startswith("access-control") for name in reply.headers)


def test_cross_site_request_is_refused_before_hooks_run(serve: Callable[..., Site]) -> None:
    """No hook runs for a cross-site POST or DELETE, even of a verb that only reads."""
    site = serve(authenticate=lambda headers: pytest.fail("the hook was asked"))
    for method, path, body in [*((*call, b"{}") for call in CALLS), *OTHERS]:
        check_refused(site.call(method, path, [("host", HOST), ("origin", EVIL)], body=body), EVIL)


def test_unknown_path_is_refused_before_its_origin_is_checked(serve: Callable[..., Site]) -> None:
    """A cross-site request to an unknown path or method gets 404 or 405, not 403."""
    for method, path, status in (("POST", "/v1/nothing", 404), ("PUT", "/v1/{name}", 405)):
        assert serve().call(method, path, [("host", HOST), ("origin", EVIL)]).status == status


def test_request_without_a_host_accepts_only_trusted_origins(serve: Callable[..., Site]) -> None:
    """Without a Host header, trusted origins are accepted, but the server's own is refused."""
    check_refused(serve().call("POST", START, [("origin", OWN)]), OWN)
    assert serve(APP).call("POST", START, [("origin", APP)]).status == 200


@pytest.mark.parametrize("module", [asgi, wsgi])
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["*"], r"'\*' would let every site in"),
        (["https://*.example.com"], "must be origins such as"),
        (["https://app.example.com/"], "without a path"),
        (["https://u@app.example.com"], "must be origins"),
        (["app.example.com"], "must be origins"),
        (["null"], "must be origins"),
        (["https://a.example:0"], "must be origins"),
        (["https://b\xfccher.example"], "must be origins"),
        ([APP, "https://a b"], "got 'https://a b'"),
        (APP, "must be several texts"),
        (None, "must be several texts"),
    ],
)
def test_trusted_origins_are_checked_at_construction(module: Any, given: Any, found: str) -> None:
    """A trusted origin that is not scheme://host or scheme://host:port is refused."""
    counting = build()
    with pytest.raises(lro.DeclarationError, match=found) as refused:
        module.OperationsApp(counting.service, trusted_origins=given)
    assert str(refused.value).startswith("trusted_origins: ")


@pytest.mark.parametrize("module", [asgi, wsgi])
def test_misspelt_option_is_refused(module: Any, counting: CountService) -> None:
    """A misspelt option raises a TypeError, so that a hook cannot be missing unnoticed."""
    with pytest.raises(TypeError, match="autenticate"):
        module.OperationsApp(counting.service, autenticate=lambda headers: "ann")


def test_reply_of_an_endpoint_by_answer_has_the_nosniff_header(counting: CountService) -> None:
    """``lro.http.answer`` adds the headers that every reply has."""
    reply = lro.http.answer(counting.service, lambda: counting.count.start(CountRequest(steps=1)))
    assert dict(reply.headers)["x-content-type-options"] == "nosniff"
