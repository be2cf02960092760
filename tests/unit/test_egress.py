"""Which URLs and addresses this server may connect to for a webhook."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from headgate.domain.egress import EgressRules
from headgate.domain.errors import InvalidInput, InvalidSetting, TooLarge

RULES = EgressRules.of()
DEV = EgressRules.of(dev=True)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *("169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("198.18.0.1", "192.0.2.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
        *("255.255.255.255", "192.88.99.1"),
        *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::ffff:0:10.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a00:1::1", "2001::1", "2001:db8::1"),
        *("fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "100::1", "3fff::1", "5f00::1"),
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert "is not a public address" in RULES.refusal(ip_address(address))
    with pytest.raises(InvalidInput, match="--webhook-allow"):
        RULES.permitted("host", [address])


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450::1"])
def test_a_public_address_is_permitted(address: str) -> None:
    assert RULES.refusal(ip_address(address)) == ""


def test_of_several_addresses_only_public_ones_are_used() -> None:
    assert RULES.permitted("host", ["10.0.0.1", "8.8.8.8", "::1"]) == [ip_address("8.8.8.8")]
    with pytest.raises(InvalidInput):
        RULES.permitted("host", ["10.0.0.1", "::1"])
    with pytest.raises(InvalidInput, match="no address"):
        RULES.permitted("host", [])


def test_an_operator_permits_networks() -> None:
    rules = EgressRules.of(networks=["10.1.0.0/16", "fd00::/8"])
    assert rules.refusal(ip_address("10.1.2.3")) == ""
    assert rules.refusal(ip_address("fd12::1")) == ""
    assert rules.refusal(ip_address("10.2.0.1"))
    assert rules.refusal(ip_address("::ffff:10.1.2.3"))
    assert DEV.refusal(ip_address("127.0.0.1")) == DEV.refusal(ip_address("::1")) == ""
    assert DEV.refusal(ip_address("10.0.0.1"))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "url: must have 1 to 2048"),
        ("http://example.com/", "must begin with https://; plain HTTP needs"),
        ("ftp://example.com/", "must begin with https://"),
        ("file:///etc/passwd", "must begin with https://"),
        ("javascript:alert(1)", "must begin with https://"),
        ("//example.com/", "must begin with https://"),
        ("https://user@example.com/", "user name or password"),
        ("https://user:secret@example.com/", "user name or password"),
        ("https://example.com/#part", "fragment"),
        ("https:///path", "has no host"),
        ("https://example.com:22/", "port 22 is not permitted; permitted: 80, 443, 8080, 8443"),
        ("https://example.com:99999/", "is not a URL"),
        ("https://[::1", "is not a URL"),
        ("https://2130706433/", "neither a host name nor an IP address"),
        ("https://0x7f000001/", "neither a host name nor an IP address"),
        ("https://2130706433./", "neither a host name nor an IP address"),
        ("https://0x7f.1./", "neither a host name nor an IP address"),
        ("https://0177.0.0.1/", "neither a host name nor an IP address"),
        ("https://127.1/", "neither a host name nor an IP address"),
        ("https://exam ple.com/", "U+0020"),
        ("https://example.com/a\r\nhost: x", "U+000D"),
        ("https://example.com\\@evil.example/", "U+005C"),
        ("https://ex\u00e4mple.com/", "U+00E4"),
        ("https://-a.example/", "neither a host name"),
        ("https://a..example/", "neither a host name"),
        (f"https://{'a.' * 127}example/", "neither a host name"),
    ],
)
def test_a_bad_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        RULES.target(url)
    assert says in str(refused.value)


def test_a_url_that_is_too_long_is_refused() -> None:
    with pytest.raises(TooLarge):
        RULES.target("https://example.com/" + "a" * 2048)


def test_a_url_has_its_parts() -> None:
    target = RULES.target("https://Example.com:8443/hook?a=1&b=%20")
    assert (target.host, target.port, target.path, target.tls) == ("example.com", 8443, "/hook?a=1&b=%20", True)
    assert target.authority == "example.com:8443"
    assert RULES.target("https://example.com").path == "/"
    assert RULES.target("https://[2606:4700::1111]/").authority == "[2606:4700::1111]"
    assert DEV.target("http://127.0.0.1:5000/x").authority == "127.0.0.1:5000"
    plain = DEV.target("http://127.0.0.1/x")
    assert (plain.port, plain.tls, plain.authority) == (80, False, "127.0.0.1")


@pytest.mark.parametrize("networks", [["10.1.2.3/16"], ["intranet"], [""]])
def test_a_network_that_is_none_is_refused(networks: list[str]) -> None:
    with pytest.raises(InvalidSetting, match="--webhook-allow"):
        EgressRules.of(networks=networks)


@pytest.mark.parametrize("ports", ["http", "0", "70000", "9-1", "1,,2"])
def test_ports_that_are_none_are_refused(ports: str) -> None:
    with pytest.raises(InvalidSetting, match="--webhook-ports"):
        EgressRules.of(ports=ports)


def test_an_operator_chooses_ports() -> None:
    rules = EgressRules.of(ports="443, 9000-9010")
    assert rules.target("https://example.com:9005/").port == 9005
    with pytest.raises(InvalidInput, match="443, 9000-9010"):
        rules.target("https://example.com:8443/")
    with pytest.raises(InvalidInput, match="permitted: 443 "):
        EgressRules.of(ports="443", dev=True).target("http://127.0.0.1:9005/")
