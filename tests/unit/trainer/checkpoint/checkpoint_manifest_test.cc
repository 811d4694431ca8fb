#include "trainer/checkpoint/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/sha256.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CheckpointManifest Example() {
  return {{3, 20}, {{"model.safetensors", {123, Sha256Hex("model")}}}, {{"run_id", "a \"quoted\" name"}}};
}

// The text with its digest corrected, as a person who edits the file by hand would do.
std::string Resign(std::string text) {
  size_t at = text.find("\"sha256\": \"", text.find("\"metadata\"")) + 11;
  text.erase(at, 64);
  return text.insert(at, Sha256Hex(text));
}

TEST(CheckpointManifestTest, ReadsWhatItWrote) {
  auto text = FormatCheckpointManifest(Example());
  ASSERT_THAT(text, IsOk());
  auto manifest = ParseCheckpointManifest(*text);
  ASSERT_THAT(manifest, IsOk());
  EXPECT_EQ(*manifest, Example());
  EXPECT_EQ(Resign(*text), *text);
}

TEST(CheckpointManifestTest, SaysHowManyRanksHaveWrittenIfThereWereSeveral) {
  EXPECT_THAT(FormatCheckpointManifest(Example()).value(),
              AllOf(HasSubstr("syncopate-checkpoint-1"), Not(HasSubstr("ranks"))));
  CheckpointManifest of_four = Example();
  of_four.ranks = 4;
  const std::string text = FormatCheckpointManifest(of_four).value();
  EXPECT_THAT(text, AllOf(HasSubstr("syncopate-checkpoint-2"), HasSubstr("\"ranks\": 4")));
  EXPECT_EQ(ParseCheckpointManifest(text).value(), of_four);
  for (const char* ranks : {"1", "0", "-4", "4.5", "\"4\"", "70000"}) {
    const std::string changed = absl::StrReplaceAll(text, {{"\"ranks\": 4", absl::StrCat("\"ranks\": ", ranks)}});
    EXPECT_THAT(ParseCheckpointManifest(Resign(changed)), HasReason("CHECKPOINT_DAMAGED")) << ranks;
  }
}

TEST(CheckpointManifestTest, RefusesRightlySignedNonsense) {
  std::string text = FormatCheckpointManifest(Example()).value();
  for (auto [from, to] :
       std::initializer_list<std::pair<const char*, const char*>>{{"model.safetensors", "../../etc/passwd"},
                                                                  {"model.safetensors", "manifest.json"},
                                                                  {"123", "-1"},
                                                                  {"123", "1.5"},
                                                                  {"123", "18446744073709551615"},
                                                                  {"\"epoch\": 3", "\"epoch\": -3"},
                                                                  {"\"epoch\": 3", "\"epoch\": \"3\""},
                                                                  {"\"run_id\"", "\"run_id\": \"x\",\n    \"run_id\""},
                                                                  {"\"a \\\"quoted\\\" name\"", "17"},
                                                                  {"\"a \\\"quoted\\\" name\"", "[[[[]]]]"}}) {
    std::string changed = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(changed, text) << from;
    EXPECT_THAT(ParseCheckpointManifest(Resign(changed)), HasReason("CHECKPOINT_DAMAGED")) << from << " as " << to;
  }
}

TEST(CheckpointManifestTest, RefusesOtherTextsAltogether) {
  for (const char* text : {"", "{}", "[]", "null", "{\"version\": 1}"}) {
    EXPECT_THAT(ParseCheckpointManifest(text), HasReason("CHECKPOINT_DAMAGED")) << text;
  }
  EXPECT_THAT(ParseCheckpointManifest(std::string(kMaxCheckpointManifestBytes + 1, ' ')),
              HasReason("CHECKPOINT_DAMAGED"));
}

TEST(CheckpointManifestTest, SaysThatAnotherFormatIsOfAnotherRelease) {
  EXPECT_THAT(ParseCheckpointManifest(R"({"format": "syncopate-checkpoint-3"})"), HasReason("CHECKPOINT_VERSION"));
}

TEST(CheckpointManifestTest, RefusesToWriteMetadataOverTheLimit) {
  CheckpointManifest manifest = Example();
  manifest.metadata["huge"] = std::string(kMaxCheckpointManifestBytes, 'x');
  EXPECT_THAT(FormatCheckpointManifest(manifest), HasReason("BAD_CHECKPOINT"));
}

}  // namespace
}  // namespace syncopate::trainer
