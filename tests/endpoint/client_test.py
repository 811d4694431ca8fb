"""The official Python client against `syncopate serve`: every route, streams, stops, log-probabilities, errors.

usage: client_test.py BINARY_FOLDER
"""

import asyncio
import json
import pathlib
import sys
import time
import unittest
import urllib.request

try:
    import openai
except ImportError:
    print("skipped: no openai in .venv; scripts/bootstrap.sh --tests installs it")
    sys.exit(77)

import serving

binaries = pathlib.Path()
HELLO = [{"role": "user", "content": "Say something."}]
TOKENS = "client " + "c" * 40 + "\nviewer " + "v" * 40 + "\n"


def post(server, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=serving.PATIENCE) as answer:
        return json.load(answer)


def connect(server, key="none", kind=openai.OpenAI):
    return kind(base_url=server.url, api_key=key, max_retries=0, timeout=serving.PATIENCE)


class GoldenTest(unittest.TestCase):
    def test_greedy_answers_are_the_text_that_transformers_wrote(self):
        scratch = serving.scratch(type(self))
        for name in ("qwen2-full", "mistral", "llama-biases"):
            prompts, answers = serving.golden_model(name, scratch / name)
            with serving.Server(binaries, scratch / name) as server:
                client = connect(server)
                for prompt, answer in zip(prompts, answers):
                    with self.subTest(model=name, prompt=prompt):
                        whole = client.completions.create(model=name, prompt=prompt, temperature=0, max_tokens=len(answer))
                        self.assertEqual(whole.choices[0].text, answer)
                        parts = client.completions.create(model=name, prompt=prompt, temperature=0, max_tokens=len(answer),
                                                          stream=True)
                        self.assertEqual("".join(part.choices[0].text for part in parts), answer)
                together = client.completions.create(model=name, prompt=prompts, temperature=0, max_tokens=len(answers[0]))
                self.assertEqual([choice.text for choice in together.choices], answers)


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = serving.tiny_model(serving.scratch(cls) / "tiny")
        cls.server = serving.Server(binaries, cls.folder, "--max-sequences", "64")
        cls.addClassCleanup(cls.server.stop)
        cls.client = connect(cls.server)

    def chat(self, **more):
        return self.client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 24, **more})

    def complete(self, **more):
        return self.client.completions.create(**{"model": "tiny", "prompt": "Hello", "max_tokens": 24, **more})

    def refused(self, kind, **more):
        with self.assertRaises(kind) as refusal:
            self.chat(**more)
        return refusal.exception

    def test_the_model_is_listed_and_another_is_not_found(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")
        self.assertEqual(self.refused(openai.NotFoundError, model="other").param, "model")

    def test_a_stream_is_the_whole_answer_in_parts(self):
        whole = self.chat(seed=5, n=3)
        self.assertEqual(len({choice.message.content for choice in whole.choices}), 3)
        texts, reasons, usage = ["", "", ""], [None] * 3, None
        for chunk in self.chat(seed=5, n=3, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        self.assertEqual(texts, [choice.message.content for choice in whole.choices])
        self.assertEqual(reasons, [choice.finish_reason for choice in whole.choices])
        self.assertEqual(usage.model_dump(), whole.usage.model_dump())
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_a_seed_gives_the_same_answer_and_none_gives_another(self):
        self.assertEqual(self.chat(seed=1).choices[0].message.content, self.chat(seed=1).choices[0].message.content)
        self.assertNotEqual(self.chat().choices[0].message.content, self.chat().choices[0].message.content)

    def test_a_stop_text_ends_each_answer_before_it(self):
        free = self.complete(seed=3, n=2, max_tokens=48)
        text = free.choices[0].text
        stop = text[len(text) // 2:len(text) // 2 + 3]
        stopped = self.complete(seed=3, n=2, max_tokens=48, stop=[stop, "never written"])
        self.assertEqual(stopped.choices[0].text, text[:text.index(stop)])
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        self.assertLess(stopped.usage.completion_tokens, free.usage.completion_tokens)
        parts = self.complete(seed=3, n=2, max_tokens=48, stop=stop, stream=True)
        self.assertEqual("".join(part.choices[0].text for part in parts if part.choices[0].index == 0), text[:text.index(stop)])

    def test_logprobs_are_those_of_the_tokens(self):
        answer = self.chat(temperature=0, logprobs=True, top_logprobs=3, max_tokens=5, extra_body={"return_token_ids": True})
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 5)
        for one in content:
            self.assertEqual(len(one.top_logprobs), 3)
            self.assertEqual(one.top_logprobs[0].token, one.token)
            self.assertLessEqual(one.logprob, 0)
        self.assertEqual(len(answer.choices[0].model_extra["token_ids"]), 5)
        legacy = self.complete(temperature=0, logprobs=2, max_tokens=5).choices[0].logprobs
        self.assertEqual([len(legacy.tokens), len(legacy.token_logprobs), len(legacy.text_offset)], [5, 5, 5])
        streamed = [chunk.choices[0].logprobs.content[0] for chunk in
                    self.chat(temperature=0, logprobs=True, top_logprobs=3, max_tokens=5, stream=True) if chunk.choices[0].logprobs]
        self.assertEqual([one.token for one in streamed], [one.token for one in content])

    def test_a_bias_decides_and_penalties_are_taken(self):
        token = post(self.server, "/tokenize", {"prompt": "x"})["tokens"][0]
        self.assertEqual(self.complete(temperature=0, max_tokens=4, logit_bias={str(token): 100}).choices[0].text, "xxxx")
        punished = self.complete(temperature=0, max_tokens=40, presence_penalty=2, frequency_penalty=2,
                                 extra_body={"return_token_ids": True}).choices[0].model_extra["token_ids"]
        free = self.complete(temperature=0, max_tokens=40, extra_body={"return_token_ids": True}).choices[0].model_extra["token_ids"]
        self.assertGreaterEqual(len(set(punished)), len(set(free)))

    def test_token_ids_and_policy_versions_are_told(self):
        answer = self.complete(prompt=[5, 6, 7], extra_body={"return_token_ids": True}, max_tokens=6)
        choice = answer.choices[0].model_extra
        self.assertEqual(choice["prompt_token_ids"], [5, 6, 7])
        count = len(choice["token_ids"])
        self.assertEqual(choice["policy_versions"], [{"epoch": 1, "step": 0, "begin": 0, "end": count}])
        self.assertEqual(answer.usage.completion_tokens, count)

    def test_the_limit_of_tokens_is_said_as_the_reason(self):
        for key in ("max_tokens", "max_completion_tokens"):
            answer = self.chat(**{"max_tokens": None, key: 3, "logit_bias": {"318": -100, "319": -100, "317": -100}})
            self.assertEqual(answer.choices[0].finish_reason, "length")
            self.assertEqual(answer.usage.completion_tokens, 3)

    def test_a_text_becomes_tokens_and_text_again(self):
        tokens = post(self.server, "/tokenize", {"prompt": "Größe 😀"})
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(post(self.server, "/detokenize", {"tokens": tokens["tokens"]})["prompt"], "Größe 😀")
        rendered = post(self.server, "/tokenize", {"messages": HELLO})["tokens"]
        self.assertIn("<|im_start|>assistant", post(self.server, "/detokenize", {"tokens": rendered})["prompt"])

    def test_errors_have_openais_classes_and_name_the_parameter(self):
        self.assertEqual(self.refused(openai.BadRequestError, temperature=-1).param, "temperature")
        self.assertEqual(self.refused(openai.BadRequestError, response_format={"type": "json_object"}).param, "response_format")
        self.assertEqual(self.refused(openai.BadRequestError, extra_body={"tempature": 1}).param, "tempature")
        self.assertEqual(self.refused(openai.BadRequestError, max_tokens=100000).code, "context_length_exceeded")
        self.assertEqual(self.refused(openai.BadRequestError, messages=[]).param, "messages")
        self.assertIn("token", str(self.refused(openai.BadRequestError, logit_bias={"999999": 1})))

    def test_tools_are_for_models_whose_template_knows_them(self):
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
        self.assertEqual(self.refused(openai.BadRequestError, tools=tools).param, "tools")
        self.assertEqual(self.refused(openai.BadRequestError, tools=tools, tool_choice="required").param, "tool_choice")
        self.assertIsNone(self.chat(tools=tools, tool_choice="none", max_tokens=2).choices[0].message.tool_calls)
        folder = serving.tiny_model(serving.scratch(type(self)) / "hermes")
        config = folder / "tokenizer_config.json"
        config.write_text(config.read_text().replace('"chat_template": "', '"chat_template": "{% if tools %}{{ tools[0].function.name '
                                                     '}} <tool_call>{% endif %}'))
        with serving.Server(binaries, folder) as server:
            client = connect(server)
            ask = {"model": "hermes", "messages": HELLO, "max_tokens": 2, "extra_body": {"return_token_ids": True}}
            with_tools = client.chat.completions.create(tools=tools, **ask)
            self.assertIsNone(with_tools.choices[0].message.tool_calls)
            without = client.chat.completions.create(**ask)
            self.assertGreater(with_tools.usage.prompt_tokens, without.usage.prompt_tokens)
        with serving.Server(binaries, self.folder, "--tool-format", "qwen3.5") as server:  # though its template names none
            client = connect(server)
            self.assertTrue(client.chat.completions.create(model="tiny", messages=HELLO, tools=tools, max_tokens=1).choices)

    def test_an_answer_after_an_open_mark_is_reasoning(self):
        folder = serving.tiny_model(serving.scratch(type(self)) / "thinker")
        config = folder / "tokenizer_config.json"
        fields = json.loads(config.read_text())
        fields["chat_template"] += "{% if add_generation_prompt and not hasty %}<think>{% elif hasty %}<think></think>{% endif %}"
        config.write_text(json.dumps(fields))
        with serving.Server(binaries, folder) as server:
            client = connect(server)
            x = post(server, "/tokenize", {"prompt": "x"})["tokens"][0]
            ask = {"model": "thinker", "messages": HELLO, "max_tokens": 4, "temperature": 0, "logit_bias": {str(x): 100}}
            message = client.chat.completions.create(**ask).choices[0].message
            self.assertEqual((message.model_extra["reasoning_content"], message.content), ("xxxx", ""))
            thoughts, content = "", ""
            for part in client.chat.completions.create(stream=True, **ask):
                delta = part.choices[0].delta
                thoughts += (delta.model_extra or {}).get("reasoning_content") or ""
                content += delta.content or ""
            self.assertEqual((thoughts, content), ("xxxx", ""))
            hasty = client.chat.completions.create(extra_body={"chat_template_kwargs": {"hasty": True}}, **ask).choices[0].message
            self.assertEqual((hasty.content, "reasoning_content" in (hasty.model_extra or {})), ("xxxx", False))

    def test_64_streams_at_once_each_get_their_own_answer(self):
        async def stream(client, i):
            parts = await client.completions.create(model="tiny", prompt=f"Number {i}", temperature=0, max_tokens=24, stream=True)
            return "".join([part.choices[0].text async for part in parts])

        async def all_streams():
            async with connect(self.server, kind=openai.AsyncOpenAI) as client:
                return await asyncio.gather(*[stream(client, i) for i in range(64)])

        answers = asyncio.run(all_streams())
        alone = self.complete(prompt=[f"Number {i}" for i in range(64)], temperature=0)
        self.assertEqual(answers, [choice.text for choice in alone.choices])

    def test_health_says_ok(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}/health", timeout=serving.PATIENCE) as answer:
            self.assertEqual(json.load(answer), {"status": "ok"})


class LimitsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = serving.scratch(cls)
        cls.folder = serving.tiny_model(scratch / "long", "--context", "65536")
        cls.tokens = scratch / "tokens"
        cls.tokens.write_text(TOKENS)
        cls.tokens.chmod(0o600)

    def long_stream(self, client):
        """A stream that takes minutes, after its first part."""
        stream = client.completions.create(model="long", prompt="a", max_tokens=60000, stream=True,
                                           logit_bias={"317": -100, "318": -100, "319": -100})
        next(iter(stream))
        return stream

    def test_a_client_that_leaves_gives_its_place_back_within_a_second(self):
        with serving.Server(binaries, self.folder, "--context", "65536", "--max-sequences", "2", "--max-streams", "1") as server:
            client = connect(server)
            stream = self.long_stream(client)
            with self.assertRaises(openai.RateLimitError) as refusal:
                client.completions.create(model="long", prompt="a", max_tokens=1)
            self.assertEqual(refusal.exception.response.headers["Retry-After"], "1")
            stream.close()
            left = time.monotonic()
            while True:
                try:
                    client.completions.create(model="long", prompt="a", max_tokens=1)
                    break
                except openai.RateLimitError:
                    self.assertLess(time.monotonic() - left, 10)
            # A second is promised; the machine that tests may be busy.
            self.assertLess(time.monotonic() - left, 3)
            unfinished = None
            while unfinished is None:
                try:
                    unfinished = self.long_stream(client)
                except openai.RateLimitError:  # a place is free a moment after its response has arrived
                    self.assertLess(time.monotonic() - left, 20)
            self.assertEqual(server.stop(), 0)
            with self.assertRaises(Exception):
                for _ in unfinished:
                    pass

    def test_tokens_decide_who_is_let_in(self):
        with serving.Server(binaries, self.folder, "--context", "512", "--token-file", str(self.tokens)) as server:
            self.assertEqual(connect(server, "c" * 40).models.list().data[0].id, "long")
            for key, kind in (("x" * 40, openai.AuthenticationError), ("v" * 40, openai.PermissionDeniedError)):
                with self.assertRaises(kind):
                    connect(server, key).models.list()


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main()
