// Compares the transformer with that of Hugging Face, by the files of scripts/golden_models.py, and adapters with those
// of PEFT, by the files of scripts/golden_adapters.py.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <memory>
#include <regex>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

#include "model/adapter_files.h"
#include "model/decoder_spec.h"
#include "model/hf_config.h"
#include "model/weight_files.h"
#include "rollouter/engine/engine.h"
#include "tests/support/golden_models.h"
#include "tests/support/status_matchers.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/decoder_program.h"
#include "trainer/actor/fused_head.h"

namespace syncopate {
namespace {

using ::syncopate::testing::Golden;
using ::syncopate::testing::IsOk;

constexpr double kTolerance = 1e-4;  // relative to the largest element of each tensor

constexpr char kAdapters[] = "adapters/";

absl::StatusOr<std::function<bool(absl::string_view)>> CompileByStandardLibrary(const std::string& pattern) {
  return [compiled = std::regex(pattern)](absl::string_view name) {
    return std::regex_match(std::string(name), compiled);
  };
}

at::Tensor ReadTensor(const Golden& golden, const std::string& name) {
  const model::StoredTensor stored = golden.tensors.Find(name).value();
  return at::from_blob(const_cast<char*>(stored.data.data()), stored.shape, at::kFloat).clone();
}

double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

// A golden case by its name, or adapters as "adapters/NAME".
class GoldenModels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    absl::string_view name = GetParam();
    const bool has_adapters = absl::ConsumePrefix(&name, kAdapters);
    const std::string adapter_folder = testing::GoldenAdapterPath(std::string(name));
    golden_ = has_adapters ? testing::ReadGoldenFolder(adapter_folder) : testing::ReadGolden(GetParam());
    const std::string folder = testing::GoldenModelPath(has_adapters ? golden_.base : GetParam());
    auto hf = model::ReadHfConfig(folder);
    ASSERT_THAT(hf, IsOk());
    hf_ = *hf;
    auto config = hf_.WithContext(hf_.longest_context());
    ASSERT_THAT(config, IsOk());
    config_ = *config;
    if (has_adapters) {
      auto lora = model::ReadAdapterConfig(adapter_folder, config_, CompileByStandardLibrary);
      ASSERT_THAT(lora, IsOk());
      config_.lora = *lora;
      auto adapters = model::AdapterFiles::Open(adapter_folder, config_);
      ASSERT_THAT(adapters, IsOk());
      adapters_ = *adapters;
    }
    auto files = model::WeightFiles::Open(folder, config_);
    ASSERT_THAT(files, IsOk());
    files_ = *files;
    ASSERT_THAT(files_->CheckFinite(), IsOk());
    manifest_ = model::MakeManifest(config_, DType::kFloat32).value();
  }

  Golden golden_;
  model::HfModel hf_;
  model::ModelConfig config_;
  std::shared_ptr<const model::WeightFiles> files_;
  std::shared_ptr<const model::AdapterFiles> adapters_;  // null without adapters
  Manifest manifest_;
};

std::vector<std::string> AllCases() {
  std::vector<std::string> cases(std::begin(testing::kGoldenCases), std::end(testing::kGoldenCases));
  for (const char* name : testing::kGoldenAdapters) cases.push_back(absl::StrCat(kAdapters, name));
  return cases;
}
INSTANTIATE_TEST_SUITE_P(, GoldenModels, ::testing::ValuesIn(AllCases()), [](const auto& info) {
  return absl::StrReplaceAll(info.param, {{"-", "_"}, {"/", "_"}});
});

// All prompts as one packed batch.
struct Packed {
  std::vector<int64_t> ids, lengths;
  std::vector<int64_t> predicts;  // rows whose next token is known
  std::vector<int64_t> targets;   // the next tokens of these rows
};
Packed PackAll(const std::vector<std::vector<int32_t>>& prompts) {
  Packed packed;
  for (const std::vector<int32_t>& prompt : prompts) {
    for (size_t i = 0; i < prompt.size(); ++i) {
      if (i > 0) packed.targets.push_back(prompt[i]);
      if (i + 1 < prompt.size()) packed.predicts.push_back(static_cast<int64_t>(packed.ids.size()));
      packed.ids.push_back(prompt[i]);
    }
    packed.lengths.push_back(static_cast<int64_t>(prompt.size()));
  }
  return packed;
}

TEST_P(GoldenModels, TrainerHasTheLogitsAndGradientsOfTransformers) {
  const at::NoGradGuard no_grad;
  trainer::Actor actor(config_, manifest_, {}, /*seed=*/0, at::kCPU, files_.get(), at::kFloat, nullptr, {}, at::kFloat,
                       adapters_.get());
  const Packed packed = PackAll(golden_.prompts);
  const model::PackedSequences sequences(packed.lengths);
  const at::Tensor ids = at::tensor(packed.ids, at::kLong), predicts = at::tensor(packed.predicts, at::kLong);
  const trainer::DecoderProgram program(actor.transformer(), at::kCPU);
  trainer::DecoderProgram::Tape tape;
  const at::Tensor hidden = program.Forward(actor.weights(), ids, sequences, &tape);
  const at::Tensor logits = actor.transformer().Logits(actor.weights(), hidden);
  int64_t begin = 0;
  for (size_t i = 0; i < golden_.prompts.size(); ++i) {
    EXPECT_LT(
        RelativeError(logits.narrow(0, begin, packed.lengths[i]), ReadTensor(golden_, absl::StrCat("logits.", i))),
        kTolerance)
        << "prompt " << i;
    begin += packed.lengths[i];
  }
  // The loss is the mean of -log p of each next token.
  const double share = -1 / static_cast<double>(packed.targets.size());
  const at::Tensor drows =
      trainer::FusedHead(at::kCPU, {})
          .ForwardBackward(
              hidden.index_select(0, predicts), actor.weights().head, at::tensor(packed.targets, at::kLong),
              [share](int64_t, const trainer::FusedHead::Rows& rows) {
                return trainer::FusedHead::RowGradients{at::full_like(rows.logprob, share), {}};
              },
              actor.gradient_units().views().head);
  program.Backward(actor.weights(), ids, sequences, at::zeros_like(hidden).index_copy_(0, predicts, drows), &tape,
                   actor.gradient_units().views());
  const at::Tensor gradients =
      at::from_blob(actor.gradients().data(), {static_cast<int64_t>(actor.gradients().size())}, at::kFloat);
  for (size_t i = 0; i < actor.trained().tensors().size(); ++i) {
    const TensorSpec& spec = actor.trained().tensors()[i];
    const at::Tensor mine =
        gradients.narrow(0, actor.trained().ranges()[i].begin / 4, spec.NumElements()).view(spec.shape);
    EXPECT_LT(RelativeError(mine, ReadTensor(golden_, "gradient." + spec.name)), kTolerance) << spec.name;
  }
}

class RecordingSink final : public rollouter::GenerationSink {
 public:
  void OnFinished(int32_t sample, Trajectory trajectory) override { finished = std::move(trajectory); }
  Trajectory finished;
};

TEST_P(GoldenModels, EngineGeneratesTheGreedyTokensOfTransformers) {
  auto made = rollouter::Engine::Create(config_, std::make_shared<rollouter::HostBackend>(config_, manifest_),
                                        {.max_sequences = 4, .max_prefill_tokens = 16});
  ASSERT_THAT(made, IsOk());
  rollouter::Engine& engine = **made;
  files_->ReadAll(manifest_, engine.policy().shadow());
  const size_t base = model::CountBaseTensors(manifest_);
  for (size_t i = base; i < manifest_.tensors().size(); ++i) {
    auto* const numbers = reinterpret_cast<float*>(engine.policy().shadow() + manifest_.ranges()[i].begin);
    adapters_->Read(i - base, absl::MakeSpan(numbers, static_cast<size_t>(manifest_.tensors()[i].NumElements())));
  }
  ASSERT_THAT(engine.policy().Install({1, 0}, /*digest=*/1), IsOk());
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (size_t i = 0; i < golden_.prompts.size(); ++i) {
    rollouter::GenerationRequest request;
    request.id = absl::StrCat(i);
    request.prompt_ids = golden_.prompts[i];
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = 8;
    request.sampling.stop_token_ids = hf_.eos_token_ids;
    request.seeds = {i};
    ASSERT_THAT(engine.CheckShape(request), IsOk());
    sinks.push_back(std::make_shared<RecordingSink>());
    engine.Add(std::move(request), sinks.back());
  }
  while (engine.HasWork()) ASSERT_THAT(engine.Step(), IsOk());
  for (size_t i = 0; i < golden_.prompts.size(); ++i) {
    EXPECT_EQ(sinks[i]->finished.tokens, golden_.greedy[i]) << "prompt " << i;
    const at::Tensor last = ReadTensor(golden_, absl::StrCat("logits.", i))[-1];
    EXPECT_NEAR(sinks[i]->finished.logprobs.at(0), at::log_softmax(last, -1).max().item<float>(), 1e-3);
  }
}

}  // namespace
}  // namespace syncopate
