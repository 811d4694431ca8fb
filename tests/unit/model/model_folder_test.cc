#include "model/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "model/hf_config.h"
#include "model/model_fingerprint.h"
#include "model/weight_files.h"
#include "tests/support/golden_models.h"
#include "tests/support/status_matchers.h"

namespace syncopate::model {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::UnorderedElementsAre;

constexpr char kPointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";

// A folder of the test's own, with the files of a golden model or without files.
class ModelFolderTest : public ::testing::Test {
 protected:
  ModelFolderTest() : folder_(JoinPath(::testing::TempDir(), absl::StrCat("model-folder-", ::getpid()))) {
    std::filesystem::remove_all(folder_);
  }
  ~ModelFolderTest() override { std::filesystem::remove_all(folder_); }

  void Fill(const std::string& golden) const { std::filesystem::copy(testing::GoldenModelPath(golden), folder_); }
  void Write(const std::string& name, const std::string& contents) const {
    std::filesystem::create_directories(folder_);
    std::filesystem::remove(JoinPath(folder_, name));
    std::ofstream(JoinPath(folder_, name), std::ios::binary) << contents;
  }
  absl::Status Refusal() const { return ReadHfConfig(folder_).status(); }

  const std::string folder_;
};

TEST_F(ModelFolderTest, AnAdapterDirectoryIsNamedAsSuchWithTheModelToMergeItInto) {
  Write("adapter_config.json", R"({"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-0.6B"})");
  EXPECT_THAT(Refusal(), HasReason("NO_MODEL"));
  EXPECT_THAT(Refusal(), HasMessage(AllOf(HasSubstr("PEFT adapters of Qwen/Qwen3-0.6B"), HasSubstr("lora.path"))));
  Write("adapter_config.json", "no JSON");
  EXPECT_THAT(Refusal(), HasMessage(HasSubstr("PEFT adapters, ")));
}

TEST_F(ModelFolderTest, ACheckpointIsNamedAsSuchWithTheCommandThatExportsIt) {
  Write("manifest.json", "{}");
  EXPECT_THAT(Refusal(), HasMessage(HasSubstr(absl::StrCat("syncopate export ", folder_, " DIR"))));
}

TEST_F(ModelFolderTest, ANameOfTheHubIsAnsweredWithTheDownload) {
  EXPECT_THAT(ReadHfConfig("no-such-org/no-such-model").status(),
              HasMessage(HasSubstr("hf download no-such-org/no-such-model --local-dir FOLDER")));
  EXPECT_THAT(ReadHfConfig("/nowhere").status(), HasMessage(HasSubstr("/nowhere is not there")));
}

TEST_F(ModelFolderTest, APointerOfGitLfsIsNamedAsSuch) {
  Fill("mistral");
  Write(kWeightsFile, kPointer);
  const absl::Status weights = WeightFiles::Open(folder_, ReadHfConfig(folder_)->config).status();
  EXPECT_THAT(weights, HasReason("LFS_POINTER"));
  EXPECT_THAT(weights, HasMessage(HasSubstr("model.safetensors: this is a Git LFS pointer; git lfs pull")));
  Write(kHfConfigFile, kPointer);
  EXPECT_THAT(Refusal(), HasReason("LFS_POINTER"));
}

TEST_F(ModelFolderTest, TheFingerprintIsOfWhatIsInTheFilesAndNotOfWhereTheyAre) {
  Fill("llama-biases");  // this model has three weight files
  Write("tokenizer.json", "{}");
  const auto here = FingerprintModel(folder_);
  ASSERT_THAT(here, IsOk());
  EXPECT_THAT(*here,
              UnorderedElementsAre(Key("config.json"), Key("generation_config.json"), Key("tokenizer.json"),
                                   Key("model-00001-of-00003.safetensors"), Key("model-00002-of-00003.safetensors"),
                                   Key("model-00003-of-00003.safetensors")));
  const std::string moved = folder_ + "-moved";
  std::filesystem::remove_all(moved);
  std::filesystem::rename(folder_, moved);
  EXPECT_EQ(FingerprintModel(moved).value(), *here);
  std::filesystem::rename(moved, folder_);
}

TEST_F(ModelFolderTest, TheFingerprintSeesTheHeaderAndTheBeginningMiddleAndEndOfWeights) {
  // The tensor has ten times the bytes that are checked in one place, after a header of 16 bytes.
  const size_t header = 16, bytes = 10 * (64 << 10);
  std::string file = std::string("\x10\0\0\0\0\0\0\0", 8) + R"({"a":"header"}  )" + std::string(bytes, 'x');
  Write(kHfConfigFile, "{}");
  Write(kWeightsFile, file);
  const auto before = FingerprintModel(folder_).value();
  auto differs = [&](size_t at) {
    std::string other = file;
    other[at] = 'y';
    Write(kWeightsFile, other);
    return FingerprintModel(folder_).value() != before;
  };
  const size_t data = 8 + header;
  for (const size_t at : {size_t{12}, data, data + (64 << 10) - 1, data + bytes / 2, data + bytes - 1}) {
    EXPECT_TRUE(differs(at)) << at;
  }
  EXPECT_FALSE(differs(data + bytes / 4));  // a byte that is not read
  Write(kWeightsFile, file + "x");
  EXPECT_NE(FingerprintModel(folder_).value(), before);
  std::filesystem::remove(JoinPath(folder_, kWeightsFile));
  EXPECT_THAT(FingerprintModel(folder_).value(), UnorderedElementsAre(Key("config.json")));
}

}  // namespace
}  // namespace syncopate::model
