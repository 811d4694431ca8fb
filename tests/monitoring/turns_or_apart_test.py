"""bench/turns_or_apart.py: its parts give what was measured, and the two ways compare as they must."""

import unittest

from sources import SOURCE, load_script

script = load_script(SOURCE / "bench" / "turns_or_apart.py")
PLAIN = {"decode_ms": 0.0, "sequence_us": 10.0, "context_ns": 0.0, "train_us": 10.0, "train_length": 1000,
         "attention_share": 0.0, "turn_seconds": 0.0, "rank_efficiency": 1.0, "slots": 512, "kv_tokens": 10**9}


class TurnsOrApartTest(unittest.TestCase):
    def test_the_parts_of_both_models_give_the_measured_generation_and_training(self):
        for model, generated, trained in (("0.5b", 3.27, 3.75), ("1.5b", 6.67, 9.46)):
            parts = script.MODELS[model]
            self.assertAlmostEqual(script.generate(1, 1024, parts, 512, 16), generated, delta=0.01 * generated)
            self.assertAlmostEqual(script.train(1, 1024, parts, 512, 8), trained, delta=0.01 * trained)

    def test_where_all_is_even_and_free_both_take_the_same(self):
        self.assertAlmostEqual(script.turns(2, 1000, PLAIN, 512, 0), script.apart(2, 1000, PLAIN, 512, 0)[0])

    def test_what_a_turn_moves_decides_between_equals(self):
        parts = PLAIN | {"turn_seconds": 1.0}
        self.assertAlmostEqual(script.turns(2, 1000, parts, 512, 0) - script.apart(2, 1000, parts, 512, 0)[0], 0.5)

    def test_turns_win_where_the_parts_are_uneven_and_cannot_be_split_evenly(self):
        parts = PLAIN | {"sequence_us": 30.0}  # generation takes three times as long as training
        self.assertLess(script.turns(2, 1000, parts, 512, 0), script.apart(2, 1000, parts, 512, 0)[0])
        self.assertEqual(script.apart(4, 1000, parts, 512, 0)[1], 1)
        self.assertAlmostEqual(script.turns(4, 1000, parts, 512, 0), script.apart(4, 1000, parts, 512, 0)[0])

    def test_a_card_without_room_for_all_sequences_makes_them_one_batch_after_the_other(self):
        parts = PLAIN | {"decode_ms": 5.0}
        at_once = script.generate(1, 1000, parts, 512, 0)
        self.assertAlmostEqual(at_once, 1000 * (0.005 + 512 * 10e-6))
        halves = script.generate(1, 1000, parts | {"kv_tokens": 256 * 1000}, 512, 0)
        self.assertAlmostEqual(halves, 2 * 1000 * (0.005 + 256 * 10e-6))

    def test_the_shorter_time_is_marked(self):
        rows = script.table(PLAIN | {"turn_seconds": 1.0}, [1000], [2], 512, 0).splitlines()
        self.assertEqual(rows[-1], "| 1000 | 11.24 | 5.62 | **5.12** (1) |")


if __name__ == "__main__":
    unittest.main()
