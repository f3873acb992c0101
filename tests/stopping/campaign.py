"""Many waits over real servers that are stopped and begun again: what each was answered.

``python -m tests.stopping.campaign 10000`` has so many callers wait, each until it is told of the
end of an operation; whoever is refused asks again, as a client does. It prints the answers by kind.
"""

from __future__ import annotations

import asyncio
import collections
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.stopping.hosts import START_PATH, Answer, running

AT_ONCE = 500
SECONDS_OF_LIFE = 4.0
"""How long a server serves before it is told to stop."""


class Campaign:
    """The callers, and what they were answered."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.left = total
        self.port = 0
        self.kinds: collections.Counter[str] = collections.Counter()
        self.longest = 0.0
        self.acknowledged: list[str] = []

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
        """Wait for an operation after the other until there are no waits left."""
        while self.left > 0:
            self.left -= 1
            name, begun = random.choice(self.acknowledged[-4:]), time.monotonic()
            while True:
                answer = await self.call(f"/v1/{name}:wait", {"timeout": "60s"})
                self.count(answer)
                if answer.done:
                    break
                await asyncio.sleep(float(answer.headers.get("retry-after", "0.1")))
            self.longest = max(self.longest, time.monotonic() - begun)

    async def starter(self, over: asyncio.Event) -> None:
        """Start operations for as long as the campaign lasts."""
        while not over.is_set():
            answer = await self.call(START_PATH, {"milliseconds": random.choice((500, 2000, 3500))})
            if answer.status == 200:
                self.acknowledged.append(answer.body["name"])
            self.kinds[f"start: {answer.status} {'ours' if answer.stopping else ''}"] += 1
            await asyncio.sleep(0.3)

    async def run(self, command: list[str], folder: Path) -> None:
        """The whole campaign."""
        over, stops, tasks = asyncio.Event(), 0, []
        while not over.is_set():
            with running([*command, "--port", str(self.port)], folder, f"{stops}.log") as host:
                port = await asyncio.to_thread(host.port)
                first, self.port = self.port == 0, port
                if first:
                    tasks = [asyncio.create_task(self.starter(over))]
                    while len(self.acknowledged) < 20:
                        await asyncio.sleep(0.05)
                    waits = [asyncio.create_task(self.caller()) for _ in range(AT_ONCE)]
                # The last server goes on until all that it was handed is done.
                await asyncio.wait(waits, timeout=SECONDS_OF_LIFE if self.left else 120)
                if all(task.done() for task in waits):
                    over.set()
                stops += 1
                began = time.monotonic()
                status = await asyncio.to_thread(host.stop)
                seconds = time.monotonic() - began
                print(f"stop {stops}: {status} in {seconds:.2f} s, {self.left} left", flush=True)
        await asyncio.gather(*tasks, *waits)
        print(f"{self.total} waits, {stops} stops, longest {self.longest:.1f} s")
        for kind, count in self.kinds.most_common():
            print(f"{count:8} {kind}")
        come = (folder / "calls").read_text().split().count("WaitOperation")
        print(f"{come:8} waits came to the application")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / "work.py"
        work.write_text("from tests.stopping.app import *\n")
        command = ["-m", "uvicorn", "work:asgi_app", "--log-level", "info"]
        asyncio.run(Campaign(int(sys.argv[1])).run(command, Path(place)))
