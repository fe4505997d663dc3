"""URLs that must never be called: forms in which a private target, or another parser's, can hide.

`P` stands for a port that a test listens on.
"""

from __future__ import annotations

HOSTILE_URLS = [
    # what is no absolute http URL
    "", "/", "hook", "//h.example/x", "https:", "https:/h.example", "https:///x", "https://", "https://?x",
    "ftp://h.example/", "file:///etc/passwd", "gopher://127.0.0.1:P/_x", "dict://127.0.0.1:P/",
    "data:text/plain,x",
    "javascript:alert(1)", "unix:///run/x.sock", "http+unix://%2Frun%2Fx/", "ws://h.example/", "jar:https://h/",
    # plain http, and other ports
    "http://h.example/", "https://h.example:8080/", "https://h.example:22/", "https://h.example:0/",
    "https://h.example:65536/", "https://h.example:-1/", "https://h.example:/", "https://h.example:4_43/",
    # loopback and private addresses, written out
    "https://127.0.0.1:P/", "https://127.0.0.1/", "https://127.1.2.3/", "https://10.0.0.1/",
    "https://172.16.0.1/", "https://192.168.1.1/", "https://100.64.0.1/", "https://0.0.0.0/",
    "https://169.254.169.254/latest/meta-data/", "https://168.63.129.16/", "https://100.100.100.200/",
    "https://192.0.0.192/", "https://198.18.0.1/", "https://224.0.0.1/", "https://255.255.255.255/",
    "https://[::1]/", "https://[::1]:P/", "https://[::]/", "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/", "https://[::127.0.0.1]/", "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/",
    "https://[fe80::1]/", "https://[fe80::1%25lo]/", "https://[fe80::1%lo]/", "https://[fc00::1]/",
    "https://[fd00:ec2::254]/", "https://[fec0::1]/", "https://[ff02::1]/", "https://[2001:db8::1]/",
    "https://[3fff::1]/", "https://[5f00::1]/", "https://[::ffff:0:127.0.0.1]/",
    # ways to write 127.0.0.1 that inet_aton and browsers take
    "https://127.1/", "https://127.0.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.0.0.1/",
    "https://0177.0.0.1/", "https://017700000001/", "https://127.0.0.1./", "https://0/", "https://00000000/",
    "https://1.0x7f/", "https://0x/", "https://127.00.0.1/", "https://256.1.1.1/", "https://1.2.3.4.5/",
    "https://①②⑦.⓪.⓪.①/", "https://127。0。0。1/", "https://１２７.0.0.1/",
    # two parsers, two hosts
    "https://h.example@127.0.0.1:P/", "https://127.0.0.1:P@h.example/", "https://user:pass@h.example/",
    "https://h.example\\@127.0.0.1:P/", "https://127.0.0.1:P\\@h.example/", "https://h.example\\.127.0.0.1/",
    "https:\\\\127.0.0.1:P\\", "https://h.example#@127.0.0.1:P/", "https://h.example/#x", "https://127.0.0.1:P#.h.example/",
    "https://h.example?@127.0.0.1:P/#", "https://[h.example]/", "https://[127.0.0.1]/", "https://[::1]h.example/",
    "https://[::1].h.example/", "https://[[::1]]/", "https://h.example%2f@127.0.0.1/", "https://%31%32%37.0.0.1/",
    "https://127.0.0.1%00.h.example/", "https://h.example%23.127.0.0.1/", "https://h.example:443:P/",
    "https://h.example,127.0.0.1/", "https://h.example;127.0.0.1/", "https://(h.example)/", "https://*.h.example/",
    # blanks and control characters
    " https://h.example/", "https://h.example/ ", "https:// h.example/", "https://h.example/a b",
    "https://h.example/\r\nX: y", "https://h.example\r\n/", "https://h.example/\t", "https://h.example/\x00",
    "https://h.exa\nmple/", "https://h.example/\x7f", "https://h.example/ü", "https://bücher.example/",
    "https://h.example\u2028/", "https://h\u200b.example/", "https://h.example\uff0f.evil/",
    # names that are none
    "https://.h.example/", "https://h..example/", "https://h.example./",
    "https://-h.example/", "https://h-.example/",
    "https://" + "a" * 64 + ".example/", "https://" + "a." * 127 + "example/",
    "https://h.example/" + "x" * 2048,
]  # fmt: skip
