"""Many waits over real servers that are stopped and started again: how each was answered.

``python -m tests.full.stopping.campaign 10000`` makes 10,000 waits, a thousand at once. Each caller
waits until it gets the end of an operation, and asks again when it is refused, as a client does.
The server is stopped and started again within every thousand. It prints the answers by kind.
"""

from __future__ import annotations

import asyncio
import collections
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.full.stopping.hosts import START_PATH, Answer, running

AT_ONCE = 1000
OURS = ("done: response", "503 with Retry-After")


class Campaign:
    """The callers, and what they were answered."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.left = total
        self.port = 0
        self.kinds: collections.Counter[str] = collections.Counter()
        self.longest = 0.0
        self.name = ""

    async def call(self, path: str, body: object) -> Answer:
        """POST, on a connection of its own."""
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
        )
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return Answer(-1)
        try:
            writer.write(head.encode() + text)
            reply = await asyncio.wait_for(reader.read(), 90)
        except TimeoutError:
            return Answer(-2)
        except OSError:
            return Answer(0)
        finally:
            writer.close()
        if not reply:
            return Answer(0)
        start, _, content = reply.partition(b"\r\n\r\n")
        lines = start.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        try:
            return Answer(int(lines[0].split()[1]), headers, json.loads(content))
        except ValueError:
            return Answer(int(lines[0].split()[1]), headers, content)

    def count(self, answer: Answer) -> str:
        """What kind of an answer it is, counted."""
        kind = {-1: "not connected", -2: "HANG", 0: "NO ANSWER"}.get(answer.status, "")
        if answer.done:
            kind = "done: " + ("response" if "response" in answer.body else str(answer.body))
        elif answer.stopping:
            kind = "503 with Retry-After"
        elif not kind:
            kind = f"{answer.status} {answer.body!r}"[:200]
        self.kinds[kind] += 1
        return kind

    async def caller(self) -> None:
        """Wait for the operation of this round, asking again whenever that is refused."""
        began = time.monotonic()
        while True:
            answer = await self.call(f"/v1/{self.name}:wait", {"timeout": "60s"})
            self.count(answer)
            if answer.done:
                break
            await asyncio.sleep(float(answer.headers.get("retry-after", "0.1")))
        self.longest = max(self.longest, time.monotonic() - began)

    async def come(self, folder: Path, count: int) -> None:
        """Return when so many waits have come to the application."""
        while (folder / "calls").read_text().split().count("WaitOperation") < count:
            await asyncio.sleep(0.05)

    async def run(self, command: list[str], folder: Path) -> None:
        """In each round all wait while the server is stopped and begun again, then let go."""
        stops, callers = 0, []
        while True:
            with running([*command, "--port", str(self.port)], folder, f"{stops}.log") as host:
                self.port = await asyncio.to_thread(host.port)
                answered = sum(count for kind, count in self.kinds.items() if kind in OURS)
                if callers:
                    await self.come(folder, answered + AT_ONCE)
                    (folder / "go").touch()
                    await asyncio.gather(*callers)
                    (folder / "go").unlink()
                    self.left -= AT_ONCE
                    answered += AT_ONCE
                if self.left > 0:
                    while (answer := await self.call(START_PATH, {"milliseconds": -1})).status < 0:
                        await asyncio.sleep(0.05)
                    self.name = answer.body["name"]
                    callers = [asyncio.create_task(self.caller()) for _ in range(AT_ONCE)]
                    await self.come(folder, answered + AT_ONCE)
                stops += 1
                began = time.monotonic()
                status = await asyncio.to_thread(host.stop)
                seconds = time.monotonic() - began
                print(f"stop {stops}: {status} in {seconds:.2f} s, {self.left} left", flush=True)
            if self.left <= 0:
                break
        print(f"{self.total} waits, {stops} stops, longest {self.longest:.1f} s")
        for kind, count in self.kinds.most_common():
            print(f"{count:8} {kind}")
        come = (folder / "calls").read_text().split().count("WaitOperation")
        print(f"{come:8} waits came to the application")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / "work.py"
        work.write_text("from tests.full.stopping.app import *\n")
        command = ["-m", "uvicorn", "work:asgi_app", "--log-level", "info"]
        asyncio.run(Campaign(int(sys.argv[1])).run(command, Path(place)))
