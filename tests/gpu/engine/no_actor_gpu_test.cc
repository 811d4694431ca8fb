// A rollouter takes no more memory of a GPU than it has declared, and has no actor. Each row of the table is a process
// of its own: this program again, with one of the probes below.
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "cuda/device.h"
#include "model/presets.h"
#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/process.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::rollouter {
namespace {

using nlohmann::json;

constexpr char kModel[] = "qwen2.5-7b";
constexpr char kLinePrefix[] = "PROBE ";
constexpr int64_t kMayDiffer = int64_t{64} << 20;
constexpr int64_t kTokens = 65536;  // tokens for whose keys and values there is room

class IgnoringSink final : public GenerationSink {
 public:
  void OnFinished(int32_t, Trajectory trajectory) override { tokens += trajectory.tokens.size(); }
  size_t tokens = 0;
};

model::ModelConfig MakeModel(int64_t layers) {
  model::ModelConfig config = model::FindPreset(kModel).value();
  config.max_position_embeddings = 4096;
  if (layers > 0) config.num_hidden_layers = layers;
  return config;
}

int64_t Used(const cuda::GpuMemory& before) { return before.free - cuda::ReadGpuMemory(0).value().free; }

// Makes an engine like that of a rollouter on one GPU and generates one token. Prints the memory in use, and whether an
// actor would fit too.
void Probe(int64_t layers, bool with_actor) {
  const model::ModelConfig config = MakeModel(layers);
  const Manifest manifest = model::MakeManifest(config, DType::kBFloat16).value();
  const cuda::GpuMemory before = cuda::ReadGpuMemory(0).value();
  auto backend = CudaBackend::Create(config, manifest, /*device=*/0, CudaInstall::kRemap);
  ASSERT_TRUE(backend.ok()) << backend.status();
  auto engine = Engine::Create(config, *backend, {.max_sequences = 256, .kv_blocks = kTokens / kBlockTokens});
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->BindThread();
  ASSERT_TRUE((*engine)->policy().Install({1, 0}, 1).ok());  // the weights are zero: all tokens are equally likely
  GenerationRequest request;
  request.prompt_ids = {1, 2, 3};
  request.seeds = {1};
  request.sampling.max_new_tokens = 1;
  auto sink = std::make_shared<IgnoringSink>();
  (*engine)->Add(request, sink);
  while ((*engine)->HasWork()) ASSERT_TRUE((*engine)->Step().ok());
  ASSERT_TRUE((*engine)->Synchronize().ok());
  EXPECT_EQ(sink->tokens, 1u);
  json line = {{"layers", config.num_hidden_layers},
               {"total", before.total},
               {"used", Used(before)},
               {"weights", (*engine)->weight_bytes()},
               {"kv", (*engine)->kv_bytes()},
               {"buffers", (*engine)->buffer_bytes()},
               {"actor", "none"}};
  if (with_actor) {
    trainer::PolicyTrainer::Options options;
    options.model = config;
    options.device = "cuda:0";
    options.compute_dtype = DType::kBFloat16;
    const auto actor = trainer::PolicyTrainer::Create(options);
    line["actor"] = actor.ok() ? "has room" : ErrorReason(actor.status());
  }
  std::printf("%s%s\n", kLinePrefix, line.dump().c_str());
}

TEST(DISABLED_Probe, OneLayer) { Probe(1, false); }
TEST(DISABLED_Probe, AllLayers) { Probe(0, false); }
TEST(DISABLED_Probe, AllLayersAndAnActor) { Probe(0, true); }

// The line that a probe has printed.
absl::StatusOr<json> RunProbe(const std::string& name) {
  const testing::TempDir folder;
  SYNCOPATE_ASSIGN_OR_RETURN(const auto process,
                             testing::Process::Start({.program = "/proc/self/exe",
                                                      .args = {absl::StrCat("--gtest_filter=DISABLED_Probe.", name),
                                                               "--gtest_also_run_disabled_tests"},
                                                      .log_path = folder.path() + "/log"}));
  const auto line = process->WaitForLogLine(absl::StrCat("^", kLinePrefix), absl::Minutes(2));
  if (!line.ok()) return absl::InternalError(absl::StrCat(line.status().message(), "\n", process->Log()));
  SYNCOPATE_RETURN_IF_ERROR(process->WaitExit(absl::Seconds(30)).status());
  return json::parse(absl::StripPrefix(*line, kLinePrefix));
}

int64_t Declared(const json& line) {
  return line["weights"].get<int64_t>() + line["kv"].get<int64_t>() + line["buffers"].get<int64_t>();
}
int64_t Beside(const json& line) { return line["used"].get<int64_t>() - Declared(line); }

void PrintRow(const std::string& what, const json& line) {
  std::string row = absl::StrCat("| ", what, " |");
  for (const char* part : {"weights", "kv", "buffers"})
    absl::StrAppend(&row, " ", line[part].get<int64_t>() >> 20, " |");
  absl::StrAppend(&row, " ", Beside(line) >> 20, " | ", line["used"].get<int64_t>() >> 20, " | ",
                  line["actor"].get<std::string>(), " |");
  std::puts(row.c_str());
}

TEST(NoActorTest, TheGpuHoldsWhatWasDeclaredAndHasNoRoomForAnActorBeside) {
  SYNCOPATE_NEED_GPUS(1);
  const absl::StatusOr<json> one = RunProbe("OneLayer"), all = RunProbe("AllLayers"),
                             both = RunProbe("AllLayersAndAnActor");
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_TRUE(both.ok()) << both.status();
  // The bytes of one rank: float32 weights, gradients and two moments, and a bfloat16 copy.
  const int64_t actor = (*all)["weights"].get<int64_t>() / 4 * 18;
  std::puts(
      absl::StrFormat("| %s, MiB after one token | two weight sets | keys and values | buffers | all else | in use | "
                      "an actor beside |\n| --- | --- | --- | --- | --- | --- | --- |",
                      kModel)
          .c_str());
  PrintRow("one layer of it", *one);
  PrintRow("all layers", *all);
  PrintRow("all layers, and an actor is built", *both);
  std::puts(absl::StrFormat("| an actor of one rank would take %d MiB, this GPU has %d |", actor >> 20,
                            (*all)["total"].get<int64_t>() >> 20)
                .c_str());
  EXPECT_LE(Beside(*all) - Beside(*one), kMayDiffer) << "undeclared memory grows with the layers";
  if (Declared(*all) + actor > (*all)["total"].get<int64_t>()) {
    EXPECT_EQ((*both)["actor"], "OUT_OF_MEMORY");
  }
}

}  // namespace
}  // namespace syncopate::rollouter
