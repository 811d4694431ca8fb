#include "model/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/half.h"
#include "base/philox.h"
#include "model/hf_config.h"
#include "tests/support/golden_models.h"
#include "tests/support/status_matchers.h"

namespace syncopate::model {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kShard2[] = "model-00002-of-00003.safetensors";
constexpr char kNorm[] = "model.norm.weight";

std::string ReadWhole(const std::string& path) { return ReadModelFile(path, 1 << 20).value(); }
void Write(const std::string& path, const std::string& contents) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << contents;
}

// A copy of a golden model, which tests damage.
class SpoiltModel {
 public:
  explicit SpoiltModel(const std::string& name)
      : folder_(JoinPath(::testing::TempDir(), absl::StrCat("spoilt-", ::getpid(), "-", count_++))) {
    std::filesystem::copy(testing::GoldenModelPath(name), folder_);
  }
  ~SpoiltModel() { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& file) const { return JoinPath(folder_, file); }
  absl::StatusOr<std::shared_ptr<const WeightFiles>> Open() const {
    SYNCOPATE_ASSIGN_OR_RETURN(HfModel model, ReadHfConfig(folder_));
    return WeightFiles::Open(folder_, model.config);
  }
  const std::string& folder() const { return folder_; }

  // Rewrites a file with its tensors changed by `change`; returns its name.
  void ChangeTensors(const std::string& file, const std::function<void(std::vector<StoredTensor>&)>& change) const {
    const std::string old = ReadWhole(Path(file));
    std::vector<StoredTensor> tensors = SafetensorsFile::Parse(old)->tensors();
    change(tensors);
    Write(Path(file), SerializeSafetensors(tensors).value());
  }
  void ChangeJson(const std::string& file, const std::function<void(Json&)>& change) const {
    Json json = Json::parse(ReadWhole(Path(file)));
    change(json);
    Write(Path(file), json.dump());
  }

 private:
  static inline int count_ = 0;
  const std::string folder_;
};

StoredTensor& Named(std::vector<StoredTensor>& tensors, const std::string& name) {
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return tensors.front();
}

TEST(WeightFilesTest, EveryGoldenModelOpens) {
  for (const char* name : testing::kGoldenCases) {
    const SpoiltModel model(name);
    const auto files = model.Open();
    ASSERT_THAT(files, IsOk()) << name;
    EXPECT_THAT((*files)->CheckFinite(), IsOk()) << name;
  }
}

TEST(WeightFilesTest, SixteenBitFormatsAreWidenedExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = WidenBFloat16(static_cast<uint16_t>(bits));
    if (!std::isnan(wide)) {
      ASSERT_EQ(RoundToBFloat16(wide), bits);
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits & 0x8000 ? -1.0f : 1.0f;
    const float half = WidenFloat16(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(half), fraction != 0);
      if (fraction == 0) {
        ASSERT_EQ(half, sign * std::numeric_limits<float>::infinity());
      }
    } else {
      const float expected = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                           : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
      ASSERT_EQ(half, sign * expected);
      ASSERT_EQ(std::signbit(half), (bits & 0x8000) != 0);
    }
  }
}

TEST(WeightFilesTest, ASymbolicLinkIsFollowed) {
  const SpoiltModel model("qwen3-tied");
  std::filesystem::rename(model.Path(kWeightsFile), model.Path("blob"));
  std::filesystem::create_symlink("blob", model.Path(kWeightsFile));
  EXPECT_THAT(model.Open(), IsOk());
}

TEST(WeightFilesTest, ATiedModelMayHoldAHead) {
  const SpoiltModel model("qwen3-tied");
  model.ChangeTensors(kWeightsFile, [](std::vector<StoredTensor>& tensors) {
    StoredTensor head = Named(tensors, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    tensors.push_back(head);
    tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", StoredDType::kFloat32, {0}, ""});
  });
  EXPECT_THAT(model.Open(), IsOk());
}

TEST(WeightFilesTest, ReadsIntoEitherDType) {
  const SpoiltModel model("llama-biases");
  const auto files = model.Open().value();
  const ModelConfig config = ReadHfConfig(model.folder())->config;
  const Manifest wide = MakeManifest(config, DType::kFloat32).value();
  const Manifest narrow = MakeManifest(config, DType::kBFloat16).value();
  std::vector<char> wide_arena(wide.arena_bytes()), narrow_arena(narrow.arena_bytes());
  files->ReadAll(wide, wide_arena.data());
  files->ReadAll(narrow, narrow_arena.data());
  for (size_t i = 0; i < files->size(); ++i) {
    for (int64_t element = 0; element < wide.tensors()[i].NumElements(); ++element) {
      float value;
      uint16_t rounded;
      std::memcpy(&value, wide_arena.data() + wide.ranges()[i].begin + 4 * element, 4);
      std::memcpy(&rounded, narrow_arena.data() + narrow.ranges()[i].begin + 2 * element, 2);
      ASSERT_EQ(rounded, RoundToBFloat16(value));
    }
  }
}

// The damage to a model of one file ("qwen3-tied") or of three ("llama-biases"), and the text that the one error must
// have.
struct Spoiling {
  const char* name;
  const char* model;
  const char* reason;
  std::vector<std::string> named;
  std::function<void(const SpoiltModel&)> spoil;
};

const std::vector<Spoiling>& Spoilings() {
  static const auto* const all = new std::vector<Spoiling>{
      {"NoWeights",
       "qwen3-tied",
       "MISSING_WEIGHTS",
       {kWeightsFile, kWeightsIndexFile},
       [](const SpoiltModel& model) { std::filesystem::remove(model.Path(kWeightsFile)); }},
      {"MissingShard",
       "llama-biases",
       "MISSING_WEIGHTS",
       {kShard2, "tensor "},
       [](const SpoiltModel& model) { std::filesystem::remove(model.Path(kShard2)); }},
      {"EmptyFile",
       "qwen3-tied",
       "BAD_SAFETENSORS",
       {kWeightsFile, "shorter than 8 bytes"},
       [](const SpoiltModel& model) { Write(model.Path(kWeightsFile), ""); }},
      {"TruncatedHeader",
       "qwen3-tied",
       "BAD_SAFETENSORS",
       {kWeightsFile, "header"},
       [](const SpoiltModel& model) { std::filesystem::resize_file(model.Path(kWeightsFile), 100); }},
      {"TruncatedShard",
       "llama-biases",
       "BAD_SAFETENSORS",
       {kShard2, "tensor 'model.", "cut short"},
       [](const SpoiltModel& model) {
         std::filesystem::resize_file(model.Path(kShard2), std::filesystem::file_size(model.Path(kShard2)) - 1);
       }},
      {"LongerFile",
       "qwen3-tied",
       "BAD_SAFETENSORS",
       {kWeightsFile},
       [](const SpoiltModel& model) {
         std::filesystem::resize_file(model.Path(kWeightsFile),
                                      std::filesystem::file_size(model.Path(kWeightsFile)) + 1);
       }},
      {"WrongShape",
       "qwen3-tied",
       "BAD_WEIGHTS",
       {kWeightsFile, kNorm, "[2, 16]", "[32]"},
       [](const SpoiltModel& model) {
         model.ChangeTensors(kWeightsFile, [](auto& tensors) { Named(tensors, kNorm).shape = {2, 16}; });
       }},
      {"ConfigOfAnotherModel",
       "qwen3-tied",
       "BAD_WEIGHTS",
       {kWeightsFile, "model.embed_tokens.weight", "[73, 32]"},
       [](const SpoiltModel& model) { model.ChangeJson(kHfConfigFile, [](Json& json) { json["vocab_size"] = 73; }); }},
      {"WrongDType",
       "qwen3-tied",
       "BAD_WEIGHTS",
       {kWeightsFile, kNorm, "I64"},
       [](const SpoiltModel& model) {
         model.ChangeTensors(kWeightsFile, [](auto& tensors) {
           Named(tensors, kNorm).dtype = StoredDType::kInt64;
           Named(tensors, kNorm).shape = {16};
         });
       }},
      {"MissingTensor",
       "qwen3-tied",
       "BAD_WEIGHTS",
       {kWeightsFile, kNorm, "missing"},
       [](const SpoiltModel& model) {
         model.ChangeTensors(kWeightsFile, [](auto& tensors) {
           std::erase_if(tensors, [](const StoredTensor& tensor) { return tensor.name == kNorm; });
         });
       }},
      {"UnexpectedBias",
       "llama-biases",
       "BAD_WEIGHTS",
       {".bias", "no place"},
       [](const SpoiltModel& model) { model.ChangeJson(kHfConfigFile, [](Json& json) { json["mlp_bias"] = false; }); }},
      {"IndexIsNoJson",
       "llama-biases",
       "BAD_WEIGHTS",
       {kWeightsIndexFile},
       [](const SpoiltModel& model) { Write(model.Path(kWeightsIndexFile), "{"); }},
      {"IndexWithoutMap",
       "llama-biases",
       "BAD_WEIGHTS",
       {kWeightsIndexFile, "weight_map"},
       [](const SpoiltModel& model) { Write(model.Path(kWeightsIndexFile), "{}"); }},
      {"IndexLeadsOutOfTheFolder",
       "llama-biases",
       "BAD_WEIGHTS",
       {kWeightsIndexFile, kNorm},
       [](const SpoiltModel& model) {
         model.ChangeJson(kWeightsIndexFile, [](Json& json) { json["weight_map"][kNorm] = "../secret.safetensors"; });
       }},
      {"IndexNamesTheWrongShard",
       "llama-biases",
       "BAD_WEIGHTS",
       {kWeightsIndexFile, kNorm, "model-00001-of-00003"},
       [](const SpoiltModel& model) {
         model.ChangeJson(kWeightsIndexFile,
                          [](Json& json) { json["weight_map"][kNorm] = "model-00001-of-00003.safetensors"; });
       }},
      {"IndexPromisesWhatIsNotThere",
       "llama-biases",
       "BAD_WEIGHTS",
       {kWeightsIndexFile, "model.layers.9.x"},
       [](const SpoiltModel& model) {
         model.ChangeJson(kWeightsIndexFile, [](Json& json) { json["weight_map"]["model.layers.9.x"] = kShard2; });
       }},
      {"IndexForgetsATensor",
       "llama-biases",
       "BAD_WEIGHTS",
       {kWeightsIndexFile, kNorm, "nothing of it"},
       [](const SpoiltModel& model) {
         model.ChangeJson(kWeightsIndexFile, [](Json& json) { json["weight_map"].erase(kNorm); });
       }},
      {"NotANumber",
       "qwen3-tied",
       "NON_FINITE",
       {kWeightsFile, kNorm, "element 3"},
       [](const SpoiltModel& model) {
         model.ChangeTensors(kWeightsFile, [](auto& tensors) {
           static std::string data(Named(tensors, kNorm).data);
           const float bad = std::numeric_limits<float>::quiet_NaN();
           std::memcpy(data.data() + 12, &bad, 4);
           Named(tensors, kNorm).data = data;
         });
       }},
      {"InfiniteHalf",
       "llama-plain",
       "NON_FINITE",
       {kWeightsFile, kNorm, "element 0"},
       [](const SpoiltModel& model) {
         model.ChangeTensors(kWeightsFile, [](auto& tensors) {
           static std::string data(Named(tensors, kNorm).data);
           const uint16_t infinity = 0x7c00;
           std::memcpy(data.data(), &infinity, 2);
           Named(tensors, kNorm).data = data;
         });
       }},
  };
  return *all;
}

TEST(WeightFilesTest, BadInputIsOneErrorThatNamesFileAndTensor) {
  for (const Spoiling& spoiling : Spoilings()) {
    SCOPED_TRACE(spoiling.name);
    const SpoiltModel model(spoiling.model);
    spoiling.spoil(model);
    const auto files = model.Open();
    const absl::Status status = files.ok() ? (*files)->CheckFinite() : files.status();
    EXPECT_THAT(status, HasReason(spoiling.reason));
    EXPECT_THAT(status, HasMessage(HasSubstr(model.folder())));
    for (const std::string& named : spoiling.named) EXPECT_THAT(status, HasMessage(HasSubstr(named)));
  }
}

// A changed byte in a header or an index makes the model refused, or leaves a model that can be read.
TEST(WeightFilesTest, SurvivesAnyDamageToHeaderAndIndex) {
  const SpoiltModel model("llama-biases");
  int refused = 0;
  for (const std::string& file : {std::string(kShard2), std::string(kWeightsIndexFile), std::string(kHfConfigFile)}) {
    const std::string good = ReadWhole(model.Path(file));
    const size_t reach = std::min<size_t>(good.size(), 2000);
    for (uint64_t round = 0; round < 150; ++round) {
      const auto draw = Philox4x32(7, round);
      std::string bad = good;
      bad[draw[0] % reach] = static_cast<char>(draw[1]);
      if (draw[2] % 4 == 0) bad.resize(draw[3] % good.size());
      Write(model.Path(file), bad);
      const auto files = model.Open();
      if (files.ok()) {
        (void)(*files)->CheckFinite();
      } else {
        ++refused;
        EXPECT_THAT(ErrorReason(files.status()), AnyOf("BAD_SAFETENSORS", "BAD_WEIGHTS", "MISSING_WEIGHTS",
                                                       "BAD_MODEL_CONFIG", "UNKNOWN_MODEL", "BAD_MODEL"));
      }
    }
    Write(model.Path(file), good);
  }
  EXPECT_GT(refused, 200);
}

// Fuses experts as transformers 5 does in memory and as some files store them.
void FuseExperts(std::vector<StoredTensor>& tensors, std::vector<std::string>& memory) {
  for (const std::string layer : {"model.layers.0.mlp.experts.", "model.layers.2.mlp.experts."}) {
    memory.resize(memory.size() + 2);
    std::string &gate_up = memory[memory.size() - 2], &down = memory.back();
    for (int expert = 0; expert < 5; ++expert) {
      const std::string one = absl::StrCat(layer, expert, ".");
      gate_up += std::string(Named(tensors, one + "gate_proj.weight").data);
      gate_up += std::string(Named(tensors, one + "up_proj.weight").data);
      down += std::string(Named(tensors, one + "down_proj.weight").data);
    }
    std::erase_if(tensors, [&](const StoredTensor& tensor) { return tensor.name.starts_with(layer); });
    tensors.push_back({layer + "gate_up_proj", StoredDType::kFloat32, {5, 24, 32}, gate_up});
    tensors.push_back({layer + "down_proj", StoredDType::kFloat32, {5, 32, 12}, down});
  }
}

TEST(WeightFilesTest, ExpertsThatAreOneTensorAreReadOneByOne) {
  const SpoiltModel model("qwen3-moe");
  const ModelConfig config = ReadHfConfig(model.folder())->config;
  const Manifest manifest = *MakeManifest(config, DType::kFloat32);
  std::string apart(static_cast<size_t>(manifest.arena_bytes()), '\0'), fused = apart;
  (*model.Open())->ReadAll(manifest, apart.data());
  std::vector<std::string> memory;
  memory.reserve(4);
  model.ChangeTensors("model.safetensors", [&](std::vector<StoredTensor>& tensors) { FuseExperts(tensors, memory); });
  auto files = model.Open();
  ASSERT_THAT(files, IsOk());
  (*files)->ReadAll(manifest, fused.data());
  EXPECT_EQ(fused, apart);
}

TEST(WeightFilesTest, ExpertsThatAreThereTwiceOrOfAnotherShapeAreRefused) {
  const SpoiltModel twice("qwen3-moe"), other("qwen3-moe");
  std::vector<std::string> memory;
  memory.reserve(8);
  std::string again;
  twice.ChangeTensors("model.safetensors", [&](std::vector<StoredTensor>& tensors) {
    StoredTensor one = Named(tensors, "model.layers.2.mlp.experts.3.down_proj.weight");
    again = std::string(one.data);
    FuseExperts(tensors, memory);
    one.data = again;
    tensors.push_back(one);
  });
  EXPECT_THAT(twice.Open(),
              AllOf(HasReason("BAD_WEIGHTS"), HasMessage(HasSubstr("experts.3.down_proj.weight is there"))));
  other.ChangeTensors("model.safetensors", [&](std::vector<StoredTensor>& tensors) {
    FuseExperts(tensors, memory);
    Named(tensors, "model.layers.0.mlp.experts.gate_up_proj").shape = {5, 32, 24};
  });
  EXPECT_THAT(other.Open(), AllOf(HasReason("BAD_WEIGHTS"), HasMessage(HasSubstr("[16, 24]"))));
}

}  // namespace
}  // namespace syncopate::model
