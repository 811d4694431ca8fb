"""bench/card_owners.py: what it reads of a scrape, which looks count, and the difference that it finds."""

import json
import pathlib
import tempfile
import threading
import unittest
import http.server

from sources import SOURCE, load_script

card_owners = load_script(SOURCE / "bench" / "card_owners.py")
MIB = 1 << 20

TRAINER = {"weights": 300 * MIB, "moments": 400 * MIB, "context and libraries": 500 * MIB}
ROLLOUTER = {"weights": 100 * MIB, "keys and values": 2000 * MIB, "context and libraries": 600 * MIB}


def with_others(own, used):
    return own | {"others": used - sum(own.values())}


def text_of(owners):
    lines = ["# HELP syncopate_card_memory_bytes Memory", "# TYPE syncopate_card_memory_bytes gauge"]
    lines += [f'syncopate_card_memory_bytes{{owner="{owner}"}} {value}' for owner, value in owners.items()]
    return "\n".join(lines + ["syncopate_steps_total 3"]) + "\n"


class CardOwnersTest(unittest.TestCase):
    def test_reads_the_owners_of_a_scrape_and_nothing_else(self):
        self.assertEqual(card_owners.parse(text_of({"others": -5, "keys and values": 1e9})),
                         {"others": -5, "keys and values": 10**9})
        self.assertEqual(card_owners.parse("syncopate_steps_total 3\n"), {})

    def test_own_parts_of_all_daemons_and_what_was_there_before_make_no_difference(self):
        before = 700 * MIB
        used = before + sum(TRAINER.values()) + sum(ROLLOUTER.values())
        daemons = {"trainer-0": with_others(TRAINER, used), "rollouter-0": with_others(ROLLOUTER, used)}
        self.assertTrue(card_owners.is_one_moment(daemons, used, used))
        self.assertEqual(card_owners.difference(daemons, before, used), 0)

    def test_memory_that_nobody_names_is_the_difference(self):
        used = sum(TRAINER.values()) + sum(ROLLOUTER.values()) + 300 * MIB
        daemons = {"trainer-0": with_others(TRAINER, used), "rollouter-0": with_others(ROLLOUTER, used)}
        self.assertEqual(card_owners.difference(daemons, 0, used), -300 * MIB)

    def test_daemons_that_have_seen_different_moments_do_not_count(self):
        used = 5000 * MIB
        daemons = {"trainer-0": with_others(TRAINER, used), "rollouter-0": with_others(ROLLOUTER, used + 100 * MIB)}
        self.assertFalse(card_owners.is_one_moment(daemons, used, used))
        one = {"trainer-0": with_others(TRAINER, used)}
        self.assertTrue(card_owners.is_one_moment(one, used, used + 2 * MIB))
        self.assertFalse(card_owners.is_one_moment(one, used, used + 100 * MIB))
        self.assertFalse(card_owners.is_one_moment({}, used, used))

    def test_finds_the_daemons_of_a_run_and_leaves_out_those_without_a_gpu(self):
        owners = with_others(ROLLOUTER, 4000 * MIB)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = text_of(owners if self.server.has_gpu else {}).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        with tempfile.TemporaryDirectory() as folder:
            run_dir = pathlib.Path(folder)
            (run_dir / "endpoints").mkdir()
            for name, has_gpu in (("rollouter-0", True), ("rollouter-1", False)):
                server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
                server.has_gpu = has_gpu
                thread = threading.Thread(target=server.serve_forever)
                thread.start()
                self.addCleanup(thread.join)
                self.addCleanup(server.server_close)
                self.addCleanup(server.shutdown)
                (run_dir / "endpoints" / f"{name}.json").write_text(
                    json.dumps({"role": "rollouter", "metrics": f"127.0.0.1:{server.server_port}"}))
            (run_dir / "endpoints" / "synchronizer.json").write_text(
                json.dumps({"role": "synchronizer", "metrics": "127.0.0.1:1"}))
            self.assertEqual(card_owners.scrape_all(run_dir), {"rollouter-0": owners})
            (run_dir / "endpoints" / "trainer-0.json").write_text(json.dumps({"role": "trainer", "metrics": "127.0.0.1:1"}))
            self.assertIsNone(card_owners.scrape_all(run_dir))


if __name__ == "__main__":
    unittest.main()
