#include "model/adapter_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file_system.h"
#include "base/philox.h"
#include "model/decoder_spec.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::model {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

ModelConfig Base() { return syncopate::testing::GroupedQueryModel(); }

// A directory of adapters for Base(), which tests damage.
class AdapterFolder {
 public:
  explicit AdapterFolder(LoraConfig lora = {.rank = 4, .alpha = 8, .projections = {"q_proj", "down_proj"}})
      : folder_(JoinPath(::testing::TempDir(), absl::StrCat("adapter-", ::getpid(), "-", count_++))), config_(Base()) {
    config_.lora = std::move(lora);
    for (const TensorSpec& spec : ParameterSpecs(config_, DType::kFloat32)) {
      if (!IsAdapterName(spec.name)) continue;
      std::vector<float>& numbers = numbers_.emplace_back(static_cast<size_t>(spec.NumElements()));
      for (float& number : numbers) number = static_cast<float>(PhiloxNormal(3, next_++));
      specs_.push_back(spec);
    }
  }
  ~AdapterFolder() { std::filesystem::remove_all(folder_); }

  std::vector<TensorToWrite> tensors() const {
    std::vector<TensorToWrite> tensors;
    for (size_t i = 0; i < specs_.size(); ++i) {
      tensors.push_back({specs_[i].name, StoredDType::kFloat32, specs_[i].shape, [this, i](const ByteSink& sink) {
                           return sink({reinterpret_cast<const char*>(numbers_[i].data()), numbers_[i].size() * 4});
                         }});
    }
    return tensors;
  }
  void Write(uint64_t base_digest = 0) const {
    ASSERT_THAT(ExportAdapter(tensors(), FormatAdapterConfig(config_.lora, "models/base"), base_digest, folder_),
                IsOk());
  }
  void ChangeConfig(const std::function<void(Json&)>& change) const {
    const std::string path = JoinPath(folder_, kAdapterConfigFile);
    Json json = Json::parse(ReadModelFile(path, 1 << 20).value());
    change(json);
    std::ofstream(path, std::ios::binary) << json.dump();
  }
  void ChangeTensors(const std::function<void(std::vector<StoredTensor>&)>& change) const {
    const std::string path = JoinPath(folder_, kAdapterWeightsFile);
    const std::string old = ReadModelFile(path, 1 << 24).value();
    std::vector<StoredTensor> tensors = SafetensorsFile::Parse(old)->tensors();
    change(tensors);
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << SerializeSafetensors(tensors).value();
  }
  absl::StatusOr<LoraConfig> Read(const CompilePattern& compile = nullptr) const {
    return ReadAdapterConfig(folder_, Base(), compile);
  }
  absl::StatusOr<std::shared_ptr<const AdapterFiles>> Open() const { return AdapterFiles::Open(folder_, config_); }

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const std::vector<std::vector<float>>& numbers() const { return numbers_; }

 private:
  static inline int count_ = 0;
  const std::string folder_;
  ModelConfig config_;
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<float>> numbers_;
  uint64_t next_ = 0;
};

TEST(AdapterFilesTest, WhatIsWrittenIsReadBack) {
  for (const LoraConfig& lora :
       {LoraConfig{.rank = 4, .alpha = 8, .projections = {"q_proj", "down_proj"}},
        LoraConfig{.rank = 3, .alpha = 2.5, .rank_stabilised = true, .projections = LoraConfig::AllProjections()}}) {
    const AdapterFolder folder(lora);
    folder.Write(0x1234);
    const auto read = folder.Read();
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(*read, lora);
    const auto files = folder.Open();
    ASSERT_THAT(files, IsOk());
    EXPECT_EQ((*files)->base_digest(), 0x1234u);
    ASSERT_EQ((*files)->size(), folder.numbers().size());
    for (size_t i = 0; i < folder.numbers().size(); ++i) {
      std::vector<float> values(folder.numbers()[i].size());
      (*files)->Read(i, absl::MakeSpan(values));
      EXPECT_EQ(values, folder.numbers()[i]);
    }
  }
}

TEST(AdapterFilesTest, TargetsAreListsAllLinearOrAPattern) {
  const AdapterFolder folder;
  folder.Write();
  auto read = [&](const Json& targets) {
    folder.ChangeConfig([&](Json& json) { json["target_modules"] = targets; });
    return folder.Read([](const std::string& pattern) -> absl::StatusOr<std::function<bool(absl::string_view)>> {
      EXPECT_EQ(pattern, "pattern");
      return [](absl::string_view name) { return absl::EndsWith(name, "v_proj"); };
    });
  };
  EXPECT_EQ(read("all-linear")->projections, LoraConfig::AllProjections());
  EXPECT_THAT(read(Json::array({"up_proj", "self_attn.o_proj"}))->projections, ElementsAre("o_proj", "up_proj"));
  EXPECT_THAT(read("pattern")->projections, ElementsAre("v_proj"));
  EXPECT_THAT(read(Json::array({"model.layers.1.self_attn.o_proj"})),
              AllOf(HasReason("BAD_ADAPTER"), HasMessage(HasSubstr("o_proj in some layers only"))));
  EXPECT_THAT(read(Json::array({"q_proj", "lm_head"})), IsOk());  // the head of the model is its embedding
  EXPECT_THAT(read(Json::array({"query_key_value"})),
              AllOf(HasReason("BAD_ADAPTER"), HasMessage(HasSubstr("match nothing"))));
  EXPECT_THAT(read(7), AllOf(HasReason("BAD_ADAPTER"), HasMessage(HasSubstr("target_modules is 7"))));
  EXPECT_THAT(folder.Read(), HasReason("BAD_ADAPTER"));
  ModelConfig untied = Base();
  untied.tie_word_embeddings = false;
  folder.ChangeConfig([](Json& json) { json["target_modules"] = Json::array({"q_proj", "lm_head"}); });
  EXPECT_THAT(ReadAdapterConfig(folder.folder(), untied),
              AllOf(HasReason("BAD_ADAPTER"), HasMessage(HasSubstr("select lm_head"))));
}

TEST(AdapterFilesTest, FeaturesThatAreNotSupportedAreRefusedByName) {
  const std::pair<const char*, Json> refused[] = {{"use_dora", true},
                                                  {"lora_dropout", 0.1},
                                                  {"bias", "all"},
                                                  {"lora_bias", true},
                                                  {"modules_to_save", Json::array({"lm_head"})},
                                                  {"rank_pattern", {{"q_proj", 8}}},
                                                  {"alpha_pattern", {{"q_proj", 8}}},
                                                  {"layers_to_transform", Json::array({0})},
                                                  {"exclude_modules", Json::array({"q_proj"})},
                                                  {"fan_in_fan_out", true},
                                                  {"target_parameters", Json::array({"x"})},
                                                  {"trainable_token_indices", Json::array({1})},
                                                  {"init_lora_weights", "pissa"},
                                                  {"init_lora_weights", "olora"},
                                                  {"init_lora_weights", "loftq"},
                                                  {"layer_replication", Json::array({{0, 1}})},
                                                  {"something_new", "x"},
                                                  {"peft_type", "LOHA"},
                                                  {"r", 0},
                                                  {"lora_alpha", -1},
                                                  {"use_rslora", "x"}};
  for (const auto& [key, value] : refused) {
    const AdapterFolder folder;
    folder.Write();
    folder.ChangeConfig([&, key = key, value = value](Json& json) { json[key] = value; });
    EXPECT_THAT(folder.Read(), AllOf(HasReason("BAD_ADAPTER"), HasMessage(HasSubstr(key)))) << value;
  }
  const AdapterFolder folder;
  folder.Write();
  folder.ChangeConfig([](Json& json) {
    json["init_lora_weights"] = "gaussian";
    json["peft_version"] = "0.21.2";
    json["runtime_config"] = {{"ephemeral_gpu_offload", false}};
    json["something_new"] = nullptr;
  });
  EXPECT_THAT(folder.Read(), IsOk());
  EXPECT_THAT(ReadAdapterConfig(folder.folder() + "-not", Base()), HasReason("NO_ADAPTER"));
}

TEST(AdapterFilesTest, TensorsOfAnotherBaseAreRefusedByName) {
  auto refused = [](const std::function<void(std::vector<StoredTensor>&)>& change) {
    const AdapterFolder folder;
    folder.Write();
    folder.ChangeTensors(change);
    return folder.Open().status();
  };
  const std::string first = AdapterName("model.layers.0.self_attn.q_proj", 'A');
  EXPECT_THAT(refused([](auto& tensors) { tensors.erase(tensors.begin()); }),
              AllOf(HasReason("BAD_ADAPTER"), HasMessage(HasSubstr(first + " is missing"))));
  EXPECT_THAT(refused([](auto& tensors) { tensors[0].name = "base_model.model.other"; }), HasReason("BAD_ADAPTER"));
  EXPECT_THAT(refused([](auto& tensors) {
                tensors.push_back(tensors.back());
                tensors.back().name = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector";
              }),
              AllOf(HasReason("BAD_ADAPTER"), HasMessage(HasSubstr("lora_magnitude_vector has no place"))));
  EXPECT_THAT(refused([](auto& tensors) { std::swap(tensors[0].shape[0], tensors[0].shape[1]); }),
              AllOf(HasReason("BAD_ADAPTER"), HasMessage(HasSubstr(first + " has the shape [48, 4]"))));
  static std::string spoilt;
  EXPECT_THAT(refused([](auto& tensors) {
                spoilt = std::string(tensors[1].data);
                const float nan = std::numeric_limits<float>::quiet_NaN();
                std::memcpy(spoilt.data() + 8, &nan, sizeof(nan));
                tensors[1].data = spoilt;
              }),
              AllOf(HasReason("NON_FINITE"), HasMessage(HasSubstr("element 2 of tensor"))));
  const AdapterFolder folder;
  folder.Write();
  std::filesystem::remove(JoinPath(folder.folder(), kAdapterWeightsFile));
  EXPECT_THAT(folder.Open(), HasReason("MISSING_WEIGHTS"));
  EXPECT_THAT(ExportAdapter(folder.tensors(), "{}", 0, folder.folder()), HasReason("FOLDER_TAKEN"));
}

ModelConfig ReadGoldenConfig(const std::string& golden, const std::string& base) {
  ModelConfig config = ReadHfConfig(syncopate::testing::GoldenModelPath(base))->config;
  const auto lora = ReadAdapterConfig(golden, config, [](const std::string& pattern) {
    return absl::StatusOr<std::function<bool(absl::string_view)>>(
        [compiled = std::regex(pattern)](absl::string_view text) {
          return std::regex_match(std::string(text), compiled);
        });
  });
  EXPECT_THAT(lora, IsOk()) << golden;
  config.lora = lora.value_or(LoraConfig());
  return config;
}

// Reads a directory of adapters and writes it as our exports are written.
void WriteAgain(const std::string& golden, const ModelConfig& config, const std::string& base, const std::string& to) {
  const auto files = AdapterFiles::Open(golden, config);
  ASSERT_THAT(files, IsOk()) << golden;
  std::vector<StoredTensor> again;
  std::vector<std::vector<float>> numbers;
  numbers.reserve((*files)->size());
  for (const TensorSpec& spec : ParameterSpecs(config, DType::kFloat32)) {
    if (!IsAdapterName(spec.name)) continue;
    std::vector<float>& values = numbers.emplace_back(static_cast<size_t>(spec.NumElements()));
    (*files)->Read(numbers.size() - 1, absl::MakeSpan(values));
    again.push_back({spec.name,
                     StoredDType::kFloat32,
                     spec.shape,
                     {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}});
  }
  ASSERT_THAT(ExportAdapter(ToWrite(again), FormatAdapterConfig(config.lora, base), 0, to), IsOk());
}

TEST(AdapterFilesTest, PeftReadsWhatWeWriteAndGivesTheSameLogits) {
  const std::string python = JoinPath(SYNCOPATE_SOURCE_DIR, "build/golden-venv/bin/python");
  if (!std::filesystem::exists(python)) GTEST_SKIP() << "no " << python << "; scripts/bootstrap.sh --long makes it";
  for (const char* name : syncopate::testing::kGoldenAdapters) {
    const std::string golden = syncopate::testing::GoldenAdapterPath(name);
    const std::string base =
        Json::parse(ReadModelFile(JoinPath(golden, kAdapterConfigFile), 1 << 20).value())["base_model_name_or_path"];
    const std::string to = JoinPath(::testing::TempDir(), absl::StrCat("peft-", ::getpid(), "-", name));
    ASSERT_NO_FATAL_FAILURE(WriteAgain(golden, ReadGoldenConfig(golden, base), base, to));
    const std::string command = absl::StrCat(python, " '", SYNCOPATE_SOURCE_DIR,
                                             "/scripts/golden_adapters.py' --check '", to, "' --case ", name);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    std::filesystem::remove_all(to);
  }
}

// We write the directory of PEFT again: names, shapes, numbers, and all keys of the configuration that we write are
// equal.
TEST(AdapterFilesTest, WhatPeftHasWrittenIsWrittenAgainTheSame) {
  for (const char* name : syncopate::testing::kGoldenAdapters) {
    const std::string golden = syncopate::testing::GoldenAdapterPath(name);
    const Json theirs = Json::parse(ReadModelFile(JoinPath(golden, kAdapterConfigFile), 1 << 20).value());
    const std::string base = theirs["base_model_name_or_path"];
    const ModelConfig config = ReadGoldenConfig(golden, base);
    const Json ours = Json::parse(FormatAdapterConfig(config.lora, base));
    for (const auto& [key, value] : ours.items()) {
      if (key == "target_modules" && theirs[key] != value) {
        // For all-linear and patterns PEFT writes the text itself, or the names that it found, in any order.
        EXPECT_TRUE(theirs[key].is_string() || theirs[key].size() >= value.size()) << name;
        continue;
      }
      EXPECT_EQ(theirs.value(key, Json("no key")), value) << name << " " << key;
    }
    const std::string bytes = ReadModelFile(JoinPath(golden, kAdapterWeightsFile), 1 << 20).value();
    const auto stored = SafetensorsFile::Parse(bytes)->tensors();
    const std::string to = JoinPath(::testing::TempDir(), absl::StrCat("again-", ::getpid(), "-", name));
    ASSERT_NO_FATAL_FAILURE(WriteAgain(golden, config, base, to));
    const std::string written = ReadModelFile(JoinPath(to, kAdapterWeightsFile), 1 << 20).value();
    const auto parsed = SafetensorsFile::Parse(written).value();
    EXPECT_EQ(parsed.tensors().size(), stored.size());
    for (const StoredTensor& tensor : stored) {
      const auto same = parsed.Find(tensor.name);
      ASSERT_THAT(same, IsOk()) << tensor.name;
      EXPECT_EQ(same->shape, tensor.shape);
      EXPECT_EQ(same->dtype, tensor.dtype);
      EXPECT_EQ(same->data, tensor.data) << tensor.name;
    }
    std::filesystem::remove_all(to);
  }
}

TEST(AdapterFilesTest, MergingAddsTheScaledProductToTheProjectionsThatHaveOne) {
  const std::string base_folder = syncopate::testing::GoldenModelPath("qwen2-full");
  ModelConfig config = ReadHfConfig(base_folder)->config;
  config.lora = {.rank = 2, .alpha = 3, .projections = {"q_proj", "v_proj", "up_proj", "down_proj"}};
  const auto base = WeightFiles::Open(base_folder, config).value();
  const std::vector<TensorSpec> specs = ParameterSpecs(config.Base(), DType::kFloat32);
  // By names: neighbours that are one product (q and v; gate and up) have their A side by side in the manifest.
  std::map<std::string, std::vector<float>> numbers;
  for (const TensorSpec& spec : ParameterSpecs(config, DType::kFloat32)) {
    if (!IsAdapterName(spec.name)) continue;
    std::vector<float> values(static_cast<size_t>(spec.NumElements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i + 1 + 7 * numbers.size());
    numbers[spec.name] = std::move(values);
  }
  auto read = [&numbers](const std::string& name) { return numbers.at(name); };
  const std::vector<TensorToWrite> merged = MergeAdapters(*base, config, read);
  ASSERT_EQ(merged.size(), specs.size());
  int changed = 0;
  for (size_t i = 0; i < merged.size(); ++i) {
    std::vector<float> before(static_cast<size_t>(specs[i].NumElements())), after;
    base->Read(i, absl::MakeSpan(before));
    ASSERT_THAT(merged[i].write([&after](absl::string_view bytes) {
      const size_t had = after.size();
      after.resize(had + bytes.size() / 4);
      std::memcpy(after.data() + had, bytes.data(), bytes.size());
      return absl::OkStatus();
    }),
                IsOk());
    ASSERT_EQ(after.size(), before.size());
    const std::string module(absl::StripSuffix(specs[i].name, ".weight"));
    if (numbers.count(AdapterName(module, 'A')) == 0) {
      EXPECT_EQ(before, after) << specs[i].name;
      continue;
    }
    ++changed;
    const std::vector<float> a = read(AdapterName(module, 'A')), b = read(AdapterName(module, 'B'));
    const auto inputs = static_cast<size_t>(specs[i].shape[1]);
    for (size_t element = 0; element < after.size(); ++element) {
      const size_t row = element / inputs, column = element % inputs;
      const double product = double{b[2 * row]} * a[column] + double{b[2 * row + 1]} * a[inputs + column];
      EXPECT_NEAR(after[element], before[element] + 1.5 * product, 1e-6);
    }
  }
  EXPECT_EQ(changed, 4 * config.num_hidden_layers);
}

}  // namespace
}  // namespace syncopate::model
