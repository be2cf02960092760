"""A network namespace beside ours, joined to it by one wire that can be cut, made lossy or narrow.

    with Island() as island:
        process = Popen([*island.prefix, "headgate", "serve", "--host", island.inside, …])
        channel = insecure_channel(f"{island.inside}:{port}")
        island.drop(toward="inside")               # one way; without `toward` both
        island.lose(percent=20)
        island.narrow(kbit=64)
        island.heal_link()
    # healing the island itself ends the namespace: end its processes first

What is dropped is dropped in silence, as by a broken switch. Inside of the island, and between its processes and
loopback there, nothing changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Final, Literal

from tests.fault.lab.inject import CannotInject, Injection, InjectionFailed, need, run

Toward = Literal["inside", "outside"]
_NETWORK: Final = "10.211"
_numbers = count(os.getpid() % 200)


class Island(Injection):
    """See the module."""

    def __init__(self) -> None:
        need("ip", "nft", "tc")
        if os.geteuid() != 0:
            raise CannotInject("network namespaces need root")
        number = next(_numbers) % 250
        self.name = f"hglab{os.getpid()}x{number}"
        self._outer, self._inner = f"hgo{os.getpid() % 100000}x{number}", f"hgi{os.getpid() % 100000}x{number}"
        self.outside, self.inside = f"{_NETWORK}.{number}.1", f"{_NETWORK}.{number}.2"
        run(["ip", "netns", "add", self.name])
        self._up, self._made = True, False
        try:
            run(["ip", "link", "add", self._outer, "type", "veth", "peer", "name", self._inner, "netns", self.name])
            run(["ip", "addr", "add", f"{self.outside}/30", "dev", self._outer])
            run(["ip", "link", "set", self._outer, "up"])
            self._ip("addr", "add", f"{self.inside}/30", "dev", self._inner)
            self._ip("link", "set", self._inner, "up")
            self._ip("link", "set", "lo", "up")
            self._nft(
                "add table inet lab",
                "add chain inet lab came { type filter hook input priority 0; }",
                "add chain inet lab goes { type filter hook output priority 0; }",
            )
            self._made = True
        except BaseException:
            self.heal()
            raise

    @property
    def prefix(self) -> tuple[str, ...]:
        """Put before a command, runs it inside."""
        return ("ip", "netns", "exec", self.name)

    def drop(self, *, toward: Toward | None = None, port: int = 0) -> None:
        """Lose everything on the wire, or what goes to or comes from a port inside."""
        self._rules(toward, port, "drop")

    def lose(self, percent: int, *, toward: Toward | None = None) -> None:
        """Lose so many packets of a hundred, at random."""
        self._rules(toward, 0, f"numgen random mod 100 < {percent} drop")

    def narrow(self, *, kbit: int) -> None:
        """So many kilobits a second, each way."""
        shape = ["root", "tbf", "rate", f"{kbit}kbit", "burst", "4kb", "latency", "2000ms"]
        self._run(["tc", "qdisc", "replace", "dev", self._outer, *shape])
        self._run([*self.prefix, "tc", "qdisc", "replace", "dev", self._inner, *shape])

    def heal_link(self) -> None:
        """The wire is good again; harmless when there is none any more."""
        if not self._up:
            return
        self._nft("flush chain inet lab came", "flush chain inet lab goes")
        for command in ([], [*self.prefix]):
            device = self._inner if command else self._outer
            if "tbf" in self._run([*command, "tc", "qdisc", "show", "dev", device]):
                self._run([*command, "tc", "qdisc", "del", "dev", device, "root"])

    def heal(self) -> None:
        """End the namespace and its wire."""
        if self._up:
            self._up = False
            with suppress(CannotInject):  # by itself: the namespace lives on while a process is in it
                run(["ip", "link", "del", self._outer])
            run(["ip", "netns", "del", self.name])

    def _rules(self, toward: Toward | None, port: int, verdict: str) -> None:
        # The device is named in either rule: loopback inside stays as it is.
        if toward != "outside":
            which = f"tcp dport {port} " if port else ""
            self._nft(f'add rule inet lab came iifname "{self._inner}" {which}{verdict}')
        if toward != "inside":
            which = f"tcp sport {port} " if port else ""
            self._nft(f'add rule inet lab goes oifname "{self._inner}" {which}{verdict}')

    def _nft(self, *commands: str) -> None:
        self._run([*self.prefix, "nft", "-f", "-"], given="\n".join(commands) + "\n")

    def _ip(self, *arguments: str) -> None:
        self._run(["ip", "-n", self.name, *arguments])

    def _run(self, command: Sequence[str], *, given: str = "") -> str:
        try:
            return run(command, given=given)
        except CannotInject as error:
            if self._made:  # what was possible a moment ago is no reason to skip a scenario
                raise InjectionFailed(str(error)) from error
            raise
