"""Clients of the endpoint that mean no good, or cannot do better: none costs another anything.

usage: hostile_test.py BINARY_FOLDER
"""

import http.client
import json
import pathlib
import socket
import sys
import time
import unittest

import serving

binaries = pathlib.Path()
GOOD = json.dumps({"prompt": "Hello", "max_tokens": 4}).encode()


class HostileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serving.Server(binaries, serving.tiny_model(serving.scratch(cls) / "tiny", "--context", "16384"),
                                    "--context", "16384", "--max-sequences", "4")
        cls.addClassCleanup(cls.server.stop)

    def open(self):
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=serving.PATIENCE)
        self.addCleanup(connection.close)
        return connection

    def send(self, data):
        """Sends bytes; returns all that comes back until the server closes, and at most for some seconds."""
        connection = self.open()
        connection.settimeout(5)
        answer = b""
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                answer += part
        except OSError:  # reset by the server, or silent
            pass
        return answer

    def head(self, path="/v1/completions", method="POST", **headers):
        lines = {"Host": f"127.0.0.1:{self.server.port}", "Content-Type": "application/json", "Connection": "close"}
        lines.update({name.replace("_", "-"): value for name, value in headers.items()})
        return f"{method} {path} HTTP/1.1\r\n".encode() + "".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode() + b"\r\n"

    def code(self, data):
        answer = self.send(data)
        return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else None

    def assert_others_are_served(self):
        started = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=serving.PATIENCE)
        connection.request("POST", "/v1/completions", GOOD, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200, answer.read())
        answer.read()
        connection.close()
        self.assertLess(time.monotonic() - started, 10)

    def test_a_page_of_another_site_is_refused(self):
        self.assertEqual(self.code(self.head(Host="evil.example", Content_Length=len(GOOD)) + GOOD), 421)
        self.assertEqual(self.code(self.head(Content_Type="text/plain", Content_Length=len(GOOD)) + GOOD), 415)
        self.assertEqual(self.code(self.head(method="OPTIONS")), 405)
        self.assertEqual(self.code(self.head(path="/v1/nothing")), 404)

    def test_ten_megabytes_of_headers_are_not_kept(self):
        self.assertIn(self.code(b"GET /health HTTP/1.1\r\n" + b"X-Filler: " + b"a" * 1000 + b"\r\n" * 1), (400, None))
        flood = b"GET /health HTTP/1.1\r\n" + (b"X-Filler: " + b"a" * 1000 + b"\r\n") * 10000
        self.assertIn(self.code(flood), (431, None))  # None: reset while it still sent
        self.assert_others_are_served()

    def test_lengths_that_lie_end_their_own_request_alone(self):
        for body in (b"ZZZ\r\n{}\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFFFF\r\n{}", b"-1\r\n{}\r\n0\r\n\r\n"):
            self.assertIn(self.code(self.head(Transfer_Encoding="chunked") + body), (400, 413, None), body)
        self.assertEqual(self.code(self.head(Transfer_Encoding="chunked", Content_Length=4) + b"0\r\n\r\n"), 400)
        self.assertEqual(self.code(self.head(Content_Length=1 << 40)), 413)
        self.assertIn(self.code(self.head(Content_Length="-5")), (400, 413))
        half = self.open()
        half.sendall(self.head(Content_Length=1000) + b"{")
        half.close()
        self.assert_others_are_served()

    def test_a_long_chunked_body_is_refused_when_it_ends(self):
        chunk = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
        self.assertEqual(self.code(self.head(Transfer_Encoding="chunked") + chunk * 17 + b"0\r\n\r\n"), 413)
        self.assert_others_are_served()

    def test_bodies_that_are_no_requests_get_400(self):
        for body in (b"", b"{", b"[]", b"null", b"{\"prompt\": \"\xff\"}", b"{\"prompt\": " + b"[" * 5000 + b"]" * 5000 + b"}",
                     b"{\"prompt\": \"\\ud800\"}", b"{\"n\": 1e400}"):
            self.assertEqual(self.code(self.head(Content_Length=len(body)) + body), 400, body[:40])

    def test_requests_in_one_packet_are_answered_one_after_the_other(self):
        first = self.head(Content_Length=len(GOOD), Connection="keep-alive") + GOOD
        answer = self.send(first + self.head(Content_Length=len(GOOD)) + GOOD)
        self.assertEqual(answer.count(b"HTTP/1.1 200"), 2)

    def test_slow_and_silent_clients_are_closed_and_cost_nobody_anything(self):
        slow = [self.open() for _ in range(100)]
        silent = [self.open() for _ in range(100)]
        for connection in slow:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: ")
        began = time.monotonic()
        while time.monotonic() - began < 4:
            for connection in slow:
                connection.sendall(b"a")
            self.assert_others_are_served()
        for connection in slow + silent:
            connection.settimeout(20)
            try:
                self.assertNotIn(b" 200 ", connection.recv(4096))
            except ConnectionResetError:
                pass
        self.assertLess(time.monotonic() - began, 25)

    def test_a_client_that_does_not_read_costs_nobody_anything(self):
        body = json.dumps({"prompt": "a", "max_tokens": 16000, "stream": True, "return_token_ids": True, "logprobs": 20}).encode()
        readers = []
        for _ in range(2):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", self.server.port))
            self.addCleanup(connection.close)
            connection.sendall(self.head(Content_Length=len(body)) + body)
            readers.append(connection)
        for _ in range(5):
            self.assert_others_are_served()
        for connection in readers:
            connection.settimeout(serving.PATIENCE)
            self.assertTrue(connection.recv(64).startswith(b"HTTP/1.1 200"))


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main()
