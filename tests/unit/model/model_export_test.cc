#include "model/model_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/hf_config.h"
#include "model/weight_files.h"
#include "tests/support/golden_models.h"
#include "tests/support/status_matchers.h"

namespace syncopate::model {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

std::vector<std::string> NamesIn(const std::string& folder) { return FileSystem::Real()->List(folder).value(); }

// A golden model in float32, as a trainer loads it.
struct Loaded {
  explicit Loaded(const std::string& name)
      : folder(testing::GoldenModelPath(name)),
        config(ReadHfConfig(folder).value().config),
        manifest(MakeManifest(config, DType::kFloat32).value()),
        arena(static_cast<size_t>(manifest.arena_bytes())) {
    WeightFiles::Open(folder, config).value()->ReadAll(manifest, arena.data());
  }

  std::string folder;
  ModelConfig config;
  Manifest manifest;
  std::vector<char> arena;
};

class ModelExportTest : public ::testing::Test {
 protected:
  ModelExportTest() : to_(JoinPath(::testing::TempDir(), absl::StrCat("exported-", ::getpid()))) { Clear(); }
  ~ModelExportTest() override { Clear(); }
  void Clear() {
    std::filesystem::remove_all(to_);
    std::filesystem::remove_all(to_ + ".partial");
  }
  absl::StatusOr<ExportedModel> Export(const Loaded& model, const ExportOptions& options = {}) {
    return ExportModel(ToWrite(TensorsOfArena(model.manifest, model.arena.data())), model.folder, to_, options);
  }
  std::vector<char> ReadBack(const Loaded& model) {
    const auto files = WeightFiles::Open(to_, ReadHfConfig(to_).value().config);
    EXPECT_THAT(files, IsOk());
    std::vector<char> arena(model.arena.size());
    if (files.ok()) (*files)->ReadAll(model.manifest, arena.data());
    return arena;
  }

  const std::string to_;
};

TEST_F(ModelExportTest, WhatIsWrittenInFloat32IsReadBackBitForBit) {
  for (const char* name : testing::kGoldenCases) {
    Clear();
    const Loaded model(name);
    ASSERT_THAT(Export(model, {.dtype = DType::kFloat32}), IsOk()) << name;
    EXPECT_EQ(ReadBack(model), model.arena) << name;
  }
}

TEST_F(ModelExportTest, BFloat16IsTheDefaultAndKeepsWhatWasBFloat16) {
  const Loaded model("qwen3-yarn");
  const auto exported = Export(model);
  ASSERT_THAT(exported, IsOk());
  EXPECT_EQ(exported->files, 1);
  EXPECT_EQ(exported->bytes, model.manifest.weight_bytes() / 2);
  EXPECT_EQ(ReadBack(model), model.arena);
  EXPECT_THAT(NamesIn(to_), ::testing::ElementsAre(kHfConfigFile, kGenerationConfigFile, kWeightsFile));
}

TEST_F(ModelExportTest, ShardsAreNoLargerThanAllowed) {
  const Loaded model("llama-biases");
  const auto exported = Export(model, {.dtype = DType::kFloat32, .max_shard_bytes = 20000});
  ASSERT_THAT(exported, IsOk());
  EXPECT_GT(exported->files, 3);
  for (const std::string& name : NamesIn(to_)) {
    EXPECT_LT(std::filesystem::file_size(JoinPath(to_, name)), 20000u + 4000u) << name;  // and a header
  }
  EXPECT_TRUE(std::filesystem::exists(JoinPath(to_, kWeightsIndexFile)));
  EXPECT_EQ(ReadBack(model), model.arena);
}

TEST_F(ModelExportTest, TransformersReadsItAndGivesTheSameLogits) {
  const std::string python = JoinPath(SYNCOPATE_SOURCE_DIR, "build/golden-venv/bin/python");
  if (!std::filesystem::exists(python)) GTEST_SKIP() << "no " << python << "; scripts/bootstrap.sh --long makes it";
  for (const char* name : {"llama-biases", "qwen2-tied", "qwen3-yarn", "mistral"}) {
    Clear();
    ASSERT_THAT(Export(Loaded(name), {.dtype = DType::kFloat32, .max_shard_bytes = 30000}), IsOk()) << name;
    const std::string command = absl::StrCat(python, " '", SYNCOPATE_SOURCE_DIR, "/scripts/golden_models.py' --check '",
                                             to_, "' --case ", name);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

TEST_F(ModelExportTest, ThePackageSafetensorsReadsTheNumbersAndConfigSaysTheirDType) {
  const std::string check =
      absl::StrCat(SYNCOPATE_PYTHON, " '", SYNCOPATE_SOURCE_DIR, "/tests/unit/model/export_check.py' ");
  const std::pair<const char*, ExportOptions> cases[] = {
      {"llama-biases", {.dtype = DType::kFloat32, .max_shard_bytes = 30000}},  // its shards are bf16 or fp16
      {"qwen2-tied", {.dtype = DType::kBFloat16}},
      {"qwen3-yarn", {.dtype = DType::kBFloat16, .max_shard_bytes = 30000}},
      {"mistral", {.dtype = DType::kFloat32}},
      {"llama3-tied", {.dtype = DType::kBFloat16}}};
  for (const auto& [name, options] : cases) {
    Clear();
    ASSERT_THAT(Export(Loaded(name), options), IsOk()) << name;
    const std::string command =
        absl::StrCat(check, testing::GoldenModelPath(name), " ", to_, " ", DTypeName(options.dtype));
    const int status = std::system(command.c_str());
    if (WEXITSTATUS(status) == 77)
      GTEST_SKIP() << "no safetensors or numpy; scripts/bootstrap.sh --tests installs them";
    EXPECT_EQ(status, 0) << command;
  }
}

TEST_F(ModelExportTest, AConfigurationThatNamesNoDTypeIsGivenOne) {
  Loaded model("qwen3-tied");
  const std::string from = to_ + "-from";
  std::filesystem::remove_all(from);
  std::filesystem::copy(model.folder, from);
  auto config = nlohmann::ordered_json::parse(std::ifstream(JoinPath(from, kHfConfigFile)));
  config.erase("dtype");
  config.erase("torch_dtype");
  std::filesystem::remove(JoinPath(from, kHfConfigFile));
  std::ofstream(JoinPath(from, kHfConfigFile)) << config;
  model.folder = from;
  ASSERT_THAT(Export(model), IsOk());
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(JoinPath(to_, kHfConfigFile)))["torch_dtype"], "bfloat16");
  std::filesystem::remove_all(from);
}

TEST_F(ModelExportTest, TokenizerFilesGoAlong) {
  Loaded model("qwen3-tied");
  const std::string with_tokenizer = to_ + "-from";
  std::filesystem::remove_all(with_tokenizer);
  std::filesystem::copy(model.folder, with_tokenizer);
  for (const char* name : {"tokenizer.json", "merges.txt", "chat_template.jinja", "README.md"}) {
    std::ofstream(JoinPath(with_tokenizer, name)) << name;
  }
  model.folder = with_tokenizer;
  ASSERT_THAT(Export(model), IsOk());
  EXPECT_THAT(NamesIn(to_), ::testing::UnorderedElementsAre(kHfConfigFile, kGenerationConfigFile, kWeightsFile,
                                                            "tokenizer.json", "merges.txt", "chat_template.jinja"));
  std::filesystem::remove_all(with_tokenizer);
}

TEST_F(ModelExportTest, WhatCannotBeWrittenLeavesNothingBehind) {
  Loaded model("qwen3-tied");
  auto expect_nothing = [this] {
    EXPECT_FALSE(std::filesystem::exists(to_));
    EXPECT_FALSE(std::filesystem::exists(to_ + ".partial"));
  };
  Loaded other("mistral");
  other.folder = model.folder;
  EXPECT_THAT(Export(other), HasReason("MODEL_MISMATCH"));
  expect_nothing();
  const size_t last = static_cast<size_t>(model.manifest.ranges().back().begin);
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::memcpy(model.arena.data() + last + 8, &bad, sizeof(bad));
      const auto refused = Export(model, {.dtype = dtype});
      EXPECT_THAT(refused, HasReason("NON_FINITE"));
      EXPECT_THAT(refused, HasMessage(HasSubstr("element 2 of model.norm.weight")));
      expect_nothing();
    }
  }
}

TEST_F(ModelExportTest, DoesNotWriteIntoAFolderThatHoldsSomething) {
  const Loaded model("qwen3-tied");
  std::filesystem::create_directories(to_);
  ASSERT_THAT(Export(model), IsOk());
  const auto again = Export(model);
  EXPECT_THAT(again, HasReason("FOLDER_TAKEN"));
  EXPECT_THAT(again, HasMessage(HasSubstr(to_)));
}

}  // namespace
}  // namespace syncopate::model
