#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tests/support/status_matchers.h"

namespace syncopate::text::tokenizer {
namespace {

using Json = nlohmann::json;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json Golden(const std::string& kind) {
  return Json::parse(std::ifstream(absl::StrCat(SYNCOPATE_GOLDEN_DIR, "/", kind, "/tokenizer.json")));
}

// Three bytes and a merge, in characters.
Json Tiny() {
  return Json::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
                         "added_tokens": [], "decoder": {"type": "Fuse"}})");
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Parsed(const Json& json) { return Tokenizer::Parse(json.dump()); }

std::vector<int32_t> GetIds(const Json& json, const std::string& text) {
  const auto tokenizer = Parsed(json);
  EXPECT_THAT(tokenizer, IsOk());
  const auto ids = (*tokenizer)->Encode(text, /*add_special_tokens=*/false);
  EXPECT_THAT(ids, IsOk());
  return *ids;
}

TEST(TokenizerTest, NamesTheKindThatItDoesNotDo) {
  struct Case {
    const char* path;
    const char* value;
    const char* named;
  };
  for (const Case& one : {
           Case{"/model/type", R"("Unigram")", "model: the model Unigram"},
           Case{"/model/type", R"("WordPiece")", "the model WordPiece"},
           Case{"/model/continuing_subword_prefix", R"("##")", "continuing_subword_prefix"},
           Case{"/model/end_of_word_suffix", R"("</w>")", "end_of_word_suffix"},
           Case{"/model/dropout", "0.1", "dropout"},
           Case{"/normalizer", R"({"type": "NFKC"})", "the normalizer NFKC"},
           Case{"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})",
                "normalizer.normalizers[0]: the normalizer Lowercase"},
           Case{"/normalizer", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})",
                "regular expression"},
           Case{"/pre_tokenizer", R"({"type": "BertPreTokenizer"})", "the pre-tokenizer BertPreTokenizer"},
           Case{"/pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": true})", "add_prefix_space"},
           Case{"/pre_tokenizer", R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated"})",
                "by a string"},
           Case{"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": " "}, "behavior": "Removed"})", "Removed"},
           Case{"/pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": false})",
                "in one of pre_tokenizer and decoder"},
           Case{"/post_processor", R"({"type": "BertProcessing"})", "the post-processor BertProcessing"},
           Case{"/decoder", R"({"type": "CTC"})", "the decoder CTC"},
           Case{"/decoder", R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace"}]})",
                "at this place"},
           Case{"/decoder", "null", "without decoder"},
           Case{"/added_tokens", R"([{"id": 3, "content": "<w>", "single_word": true}])", "single_word"},
       }) {
    Json json = Tiny();
    json[Json::json_pointer(one.path)] = Json::parse(one.value);
    EXPECT_THAT(Parsed(json), AllOf(HasReason("UNSUPPORTED_TOKENIZER"), HasMessage(HasSubstr(one.named))));
  }
}

TEST(TokenizerTest, RefusesFilesThatContradictThemselves) {
  struct Case {
    const char* path;
    const char* value;
  };
  for (const Case& one : {
           Case{"/model/vocab", R"({"a": 0, "b": 0})"},
           Case{"/model/vocab", R"({"a": -1})"},
           Case{"/model/vocab", R"({"a": 4294967296})"},
           Case{"/model/vocab", R"({"a": 0.5})"},
           Case{"/model/vocab", "[]"},
           Case{"/model/merges", R"([["a", "a"]])"},
           Case{"/model/merges", R"(["ab"])"},
           Case{"/model/merges", "[1]"},
           Case{"/model/merges", "{}"},
           Case{"/model/unk_token", R"("x")"},
           Case{"/model/byte_fallback", "1"},
           Case{"/added_tokens", R"([{"id": 7, "content": "<x>"}])"},
           Case{"/added_tokens", R"([{"content": "<x>"}])"},
           Case{"/added_tokens", "{}"},
           Case{"/model", "[]"},
           Case{"/post_processor", R"({"type": "TemplateProcessing", "special_tokens": {"s": {"ids": [9]}},
                                       "single": [{"SpecialToken": {"id": "s"}}, {"Sequence": {"id": "A"}}]})"},
       }) {
    Json json = Tiny();
    json[Json::json_pointer(one.path)] = Json::parse(one.value);
    EXPECT_THAT(Parsed(json), HasReason("BAD_TOKENIZER")) << one.path << " " << one.value;
  }
  EXPECT_THAT(Tokenizer::Parse("{"), HasReason("BAD_JSON"));
  EXPECT_THAT(Tokenizer::Parse(R"({"model": {"vocab": {"a": 0, "a": 1}}})"), HasReason("BAD_JSON"));
  EXPECT_THAT(Tokenizer::Parse(absl::StrCat(R"({"x": )", std::string(50, '['), std::string(50, ']'), "}")),
              HasReason("BAD_JSON"));
  EXPECT_THAT(Tokenizer::Parse("{\"x\": \"\\ud800\"}"), HasReason("BAD_JSON"));
}

TEST(TokenizerTest, HoldsItsLimits) {
  TokenizerLimits limits;
  limits.max_file_bytes = 50;
  EXPECT_THAT(Tokenizer::Parse(Tiny().dump(), limits), HasReason("BAD_JSON"));
  limits = {.max_tokens = 2};
  EXPECT_THAT(Tokenizer::Parse(Tiny().dump(), limits), HasReason("BAD_TOKENIZER"));
  limits = {.max_text_bytes = 10};
  Json json = Tiny();
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "bbbb"}};
  const auto tokenizer = Tokenizer::Parse(json.dump(), limits);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_THAT((*tokenizer)->Encode(std::string(11, 'b'), false), HasReason("TEXT_TOO_LONG"));
  EXPECT_THAT((*tokenizer)->Encode("aa", false), IsOk());
  EXPECT_THAT((*tokenizer)->Encode("aaa", false), HasReason("TEXT_TOO_LONG")) << "it would grow to 12 bytes";
  json["added_tokens"] = Json::parse(R"([{"id": 3, "content": "|", "normalized": false}])");
  const auto cutting = Tokenizer::Parse(json.dump(), limits);
  ASSERT_THAT(cutting, IsOk());
  EXPECT_THAT((*cutting)->Encode("a|a|a|a|a", false), IsOk());
  EXPECT_THAT((*cutting)->Encode("aa|aa|aa", false), HasReason("TEXT_TOO_LONG")) << "24 bytes in three parts";
}

TEST(TokenizerTest, NamesTheByteThatIsNotUtf8) {
  const auto tokenizer = Parsed(Golden("qwen2"));
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_THAT((*tokenizer)->Encode("good \xED\xA0\x80", false),
              AllOf(HasReason("BAD_UTF8"), HasMessage(HasSubstr("byte 5"))));
}

TEST(TokenizerTest, ATokenOfTheVocabularyKeepsItsIdWhateverTheFileSays) {
  Json json = Tiny();
  json["added_tokens"] = Json::parse(R"([{"id": 9, "content": "b"}, {"id": 3, "content": "<x>", "special": true}])");
  EXPECT_THAT(GetIds(json, "ab<x>"), ElementsAre(0, 1, 3));
}

TEST(TokenizerTest, UnknownCharactersAreTheUnknownTokenOrNothing) {
  Json json = Tiny();
  EXPECT_THAT(GetIds(json, "a中文b"), ElementsAre(2));
  json["model"]["unk_token"] = "b";
  EXPECT_THAT(GetIds(json, "中文"), ElementsAre(1, 1));
  json["model"]["fuse_unk"] = true;
  EXPECT_THAT(GetIds(json, "中文"), ElementsAre(1));
}

TEST(TokenizerTest, FindsTokensByName) {
  const auto tokenizer = Parsed(Golden("llama3"));
  ASSERT_THAT(tokenizer, IsOk());
  const auto begin = (*tokenizer)->FindToken("<|begin_of_text|>");
  ASSERT_TRUE(begin.has_value());
  EXPECT_THAT((*tokenizer)->Encode("<|begin_of_text|>", false), IsOk());
  EXPECT_EQ((*tokenizer)->Encode("<|begin_of_text|>", false)->at(0), *begin);
  EXPECT_EQ((*tokenizer)->FindToken("<|no_such|>"), std::nullopt);
  EXPECT_LT(*begin, (*tokenizer)->id_limit());
}

TEST(TokenizerTest, IdsThatNoTokenHasGiveNothing) {
  const auto tokenizer = Parsed(Tiny());
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->Decode({-1, 2, 3, 1 << 30}, false), "ab");
}

TEST(TokenizerTest, AStreamNeverShowsHalfACharacter) {
  for (const char* kind : {"qwen2", "llama2"}) {
    const auto tokenizer = Parsed(Golden(kind));
    ASSERT_THAT(tokenizer, IsOk());
    const std::string text = "𝔘𓀀 👩‍👩‍👧‍👦 граница";
    const auto ids = (*tokenizer)->Encode(text, false);
    ASSERT_THAT(ids, IsOk());
    auto stream = (*tokenizer)->Stream(false);
    std::string shown;
    for (const int32_t id : *ids) {
      const std::string part = stream.Add(id);
      EXPECT_TRUE(IsUtf8(part)) << kind;
      EXPECT_EQ(part.find("\uFFFD"), std::string::npos) << kind;
      shown += part;
    }
    EXPECT_EQ(shown + stream.End(), text);
  }
}

TEST(TokenizerTest, AStreamThatEndsWithinACharacterSaysSo) {
  const auto tokenizer = Parsed(Golden("llama2"));
  ASSERT_THAT(tokenizer, IsOk());
  auto stream = (*tokenizer)->Stream(false);
  EXPECT_EQ(stream.Add(*(*tokenizer)->FindToken("<0xE4>")), "");
  EXPECT_EQ(stream.Add(*(*tokenizer)->FindToken("<0xB8>")), "");
  EXPECT_EQ(stream.End(), "\uFFFD\uFFFD");
}

TEST(TokenizerTest, RunsOfOneCharacterTakeTimeInProportion) {
  // An algorithm of quadratic time would need minutes for these texts.
  for (const char* kind : {"qwen2", "o200k", "deepseek", "llama2", "gpt2"}) {
    const auto tokenizer = Parsed(Golden(kind));
    ASSERT_THAT(tokenizer, IsOk());
    for (const char* unit : {"a", "A", " ", "\n", "<", "'", "\u0301", "é", " \n", "▁"}) {
      std::string text;
      while (text.size() < 100'000) text += unit;
      const auto ids = (*tokenizer)->Encode(text, false);
      EXPECT_THAT(ids, IsOk()) << kind << " " << unit;
    }
  }
}

TEST(TokenizerTest, ThreadsShareOne) {
  const auto tokenizer = Parsed(Golden("qwen2"));
  ASSERT_THAT(tokenizer, IsOk());
  const std::string text = "The trainer improves the policy, größer als 1,024 中文";
  const auto expected = (*tokenizer)->Encode(text, true);
  ASSERT_THAT(expected, IsOk());
  std::vector<std::vector<int32_t>> ids(4);
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&] {
      PieceCache cache;
      for (int i = 0; i < 50; ++i) mine = *(*tokenizer)->Encode(text, true, &cache);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : ids) EXPECT_EQ(mine, *expected);
}

TEST(TokenizerTest, LoadsFromAFolderThroughALink) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tokenizer_link";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / "tokenizer.json");
  std::filesystem::create_symlink(absl::StrCat(SYNCOPATE_GOLDEN_DIR, "/gpt2/tokenizer.json"),
                                  folder / "tokenizer.json");
  EXPECT_THAT(Tokenizer::Load(FileSystem::Real(), folder.string()), IsOk());
  EXPECT_THAT(Tokenizer::Load(FileSystem::Real(), "/nowhere"), HasReason("NO_SUCH_FILE"));
}

}  // namespace
}  // namespace syncopate::text::tokenizer
