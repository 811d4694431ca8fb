#include "bench/train/train_cases.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <future>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/digest.h"
#include "bench/measure/device_profile.h"
#include "bench/measure/figures.h"
#include "bench/train/beside_steps.h"
#include "bench/train/rank_steps.h"
#include "bench/train/state_arenas.h"
#include "bench/train/train_batches.h"
#include "bench/train/train_world.h"
#include "trainer/step/phase_clock.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;
using trainer::PolicyTrainer;

constexpr uint64_t kSeed = 7;
constexpr int kCopiesAlone = 5;
constexpr int kMemoryLines[] = {5, 50};  // and the last step

double MillisecondsSince(absl::Time begin) { return absl::ToDoubleMilliseconds(Clock::Real()->Now() - begin); }

void Wait(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

trainer::Recompute ToRecompute(const TrainArguments& arguments) {
  return arguments.recompute == "none"   ? trainer::Recompute::kNone
         : arguments.recompute == "full" ? trainer::Recompute::kFull
                                         : trainer::Recompute::kSelective;
}

// 2 operations for each parameter and token forward, twice that backward, and those of attention.
double StepFlops(const model::ModelConfig& shape, const std::vector<int64_t>& lengths) {
  const double layer =
      static_cast<double>(shape.hidden_size) *
      static_cast<double>(2 * shape.query_size() + 2 * shape.key_value_size() + 3 * shape.intermediate_size);
  const double weights =
      layer * static_cast<double>(shape.num_hidden_layers) + static_cast<double>(shape.vocab_size * shape.hidden_size);
  double total = 0;
  for (int64_t length : lengths) {
    const double attention = 2.0 * static_cast<double>(shape.query_size() * length * length);
    total += 2 * weights * static_cast<double>(length) + attention * static_cast<double>(shape.num_hidden_layers);
  }
  return 3 * total;
}

// Memory of libtorch's allocator on a GPU, in GiB.
struct Memory {
  double allocated_peak = 0;
  double reserved = 0;
  double reserved_peak = 0;
};
Memory GetMemory(at::Device device) {
  if (device.is_cpu()) return {};
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  return {gib(stats.allocated_bytes[0].peak), gib(stats.reserved_bytes[0].current), gib(stats.reserved_bytes[0].peak)};
}

// One case's constants, and the fields that all of its lines share.
class Case {
 public:
  Case(std::string name, const TrainArguments& arguments, const model::ModelConfig& shape, at::Device device,
       bool deterministic = false)
      : name_(std::move(name)),
        deterministic_(deterministic),
        arguments_(arguments),
        shape_(shape),
        device_(device),
        random_(kSeed),
        lengths_(DrawLengths(arguments.tokens, arguments.longest, arguments.ragged, random_)) {
    if (device.is_cpu()) return;
    at::empty({1}, at::TensorOptions(device));  // makes the allocator exist
    c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  }

  json Program() {
    TrainWorld world({shape_, lengths_, ToRecompute(arguments_), arguments_.float32_logits, device_, deterministic_});
    const bool passes = name_ == "logprobs";
    auto once = [&] { passes ? world.LogProbs() : world.Step(); };
    Warm([&] {
      once();
      Wait(device_);
    });
    trainer::PhaseClock clock(device_);
    const absl::Time begin = Clock::Real()->Now();
    clock.Mark();
    for (int i = 0; i < arguments_.steps; ++i) {
      once();
      clock.Mark();
    }
    // The host's time for queueing a step: if it exceeds the device's time, the device waits for the host.
    const double queued_ms = MillisecondsSince(begin) / arguments_.steps;
    Wait(device_);
    std::vector<double> ms;
    for (int i = 0; i < arguments_.steps; ++i) ms.push_back(clock.Seconds(static_cast<size_t>(i)) * 1e3);
    json line = MakeLine(Median(ms), passes ? 3 : 1);
    line["queued_ms"] = queued_ms;
    line["entropy"] = world.entropy().mean().item<double>();
    return line;
  }

  // Each rank has as many tokens as a single rank would have.
  absl::StatusOr<json> PolicyOfRanks() {
    const auto world = static_cast<int32_t>(arguments_.ranks);
    SYNCOPATE_ASSIGN_OR_RETURN(const RankFactory make_ranks, MakeRankFactory(world, !device_.is_cpu()));
    std::vector<int64_t> lengths;
    for (int32_t rank = 0; rank < world; ++rank) lengths.insert(lengths.end(), lengths_.begin(), lengths_.end());
    const TrainBatch batch(lengths, shape_, random_);
    RankSteps asked;
    asked.world = world;
    asked.batch = batch.groups();
    asked.warm_seconds = arguments_.warm_seconds;
    asked.steps = arguments_.steps;
    asked.options = [this](int32_t rank) {
      return PolicyOptions(device_.is_cpu() ? "cpu" : absl::StrCat("cuda:", rank));
    };
    SYNCOPATE_ASSIGN_OR_RETURN(const json measured, MeasureRankSteps(asked, make_ranks));
    json line = MakeLine(measured["ms"], 1);
    line["ranks"] = world;
    line["reduce_dtype"] = arguments_.reduce_dtype;
    line.update(measured);
    return line;
  }

  absl::StatusOr<json> Policy() {
    SYNCOPATE_ASSIGN_OR_RETURN(const auto policy, MakePolicy());
    const TrainBatch batch(lengths_, shape_, random_);
    absl::StatusOr<trainer::StepFigures> metrics;
    std::vector<double> ms, device_ms, optimizer_ms;
    auto once = [&] {
      const absl::Time begin = Clock::Real()->Now();
      if (metrics.ok() || ms.empty()) metrics = policy->Step(batch.groups());
      if (!metrics.ok()) return;
      ms.push_back(MillisecondsSince(begin));
      device_ms.push_back((metrics->forward_backward_seconds + metrics->optimizer_seconds) * 1e3);
      optimizer_ms.push_back(metrics->optimizer_seconds * 1e3);
    };
    Warm(once);
    // The first steps choose kernels and fill the allocator.
    for (auto* figures : {&ms, &device_ms, &optimizer_ms}) figures->clear();
    for (int i = 0; i < arguments_.steps && metrics.ok(); ++i) once();
    SYNCOPATE_RETURN_IF_ERROR(metrics.status());
    // The cost of the digest in each step's line of metrics.jsonl, which is added to the step; the call waits for the
    // device.
    std::vector<double> digest_ms;
    for (int i = 0; i < arguments_.steps; ++i) {
      const absl::Time begin = Clock::Real()->Now();
      SYNCOPATE_RETURN_IF_ERROR(policy->Digest().status());
      digest_ms.push_back(MillisecondsSince(begin));
    }
    json line = MakeLine(Median(ms), 1);
    line["digest_ms"] = Median(digest_ms);
    line["device_ms"] = Median(device_ms);
    line["optimizer_ms"] = Median(optimizer_ms);
    line["loss"] = metrics->loss;
    line["entropy"] = metrics->entropy;
    line["skipped"] = metrics->skipped_updates;
    if (arguments_.profile) {
      line["kernels"] = ProfileOnce(device_, once);
      SYNCOPATE_RETURN_IF_ERROR(metrics.status());
    }
    return line;
  }

  // Each step has one to two times the tokens, in other lengths, so that micro-batches have different sizes.
  absl::Status MemoryOverSteps(const TellLine& tell) {
    if (device_.is_cpu()) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE", "the case memory needs a GPU; --device says where");
    }
    SYNCOPATE_ASSIGN_OR_RETURN(const auto policy, MakePolicy());
    std::uniform_int_distribution<int64_t> total(arguments_.tokens, 2 * arguments_.tokens);
    int64_t tokens = 0;
    const absl::Time begin = Clock::Real()->Now();
    int64_t flushes = 0;
    for (int step = 1; step <= arguments_.memory_steps; ++step) {
      const TrainBatch batch(DrawLengths(total(random_), arguments_.longest, /*ragged=*/true, random_), shape_,
                             random_);
      SYNCOPATE_RETURN_IF_ERROR(policy->Step(batch.groups()).status());
      tokens += batch.tokens();
      flushes += policy->TakeMoves().cache_flushes;
      if (std::count(std::begin(kMemoryLines), std::end(kMemoryLines), step) == 0 && step != arguments_.memory_steps) {
        continue;
      }
      const Memory memory = GetMemory(device_);
      tell({{"case", name_},
            {"model", arguments_.model},
            {"allocator", arguments_.allocator},
            {"empty_cache", arguments_.empty_cache},
            {"step", step},
            {"flushes", flushes},
            {"reserved_peak_gib", memory.reserved_peak},
            {"reserved_gib", memory.reserved},
            {"allocated_peak_gib", memory.allocated_peak},
            {"tokens_per_second", static_cast<double>(tokens) / MillisecondsSince(begin) * 1e3}});
      // Resets the peaks, so that the next line has those of the steps after this one.
      c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
    }
    return absl::OkStatus();
  }

  // One line for each placement of the state; steps of the same kind must end with bit-identical weights.
  absl::Status Offload(const TellLine& tell) {
    struct Variant {
      const char* name;
      bool has_reference_pass;
      int updates;
      trainer::MemoryOptions memory;
    };
    const Variant variants[] = {
        {"one update, all stays", false, 1, {}},
        {"one update, parameters leave", false, 1, {.offload_params = true}},
        {"two updates with a pass, all stays", false, 2, {}},
        {"two updates with a pass, moments leave", false, 2, {.offload_optimizer_for_logprob = true}},
        {"reference pass, all stays", true, 1, {}},
        {"reference pass, reference leaves", true, 1, {.offload_reference = true}},
        {"reference pass, all leaves",
         true,
         1,
         {.offload_params = true, .offload_optimizer_for_logprob = true, .offload_reference = true}},
    };
    const TrainBatch batch(lengths_, shape_, random_);
    for (const Variant& variant : variants) {
      if (!absl::StrContains(variant.name, arguments_.variant)) continue;
      PolicyTrainer::Options options = PolicyOptions(DeviceName());
      options.memory = variant.memory;
      options.memory.empty_cache = PolicyOptions(DeviceName()).memory.empty_cache;
      options.arenas = StateArenasOn(device_);
      options.step.updates_per_batch = variant.updates;
      options.step.loss.kl_coefficient = variant.has_reference_pass ? 1e-3 : 0;
      options.step.loss.kl_in_reward = variant.has_reference_pass;
      SYNCOPATE_ASSIGN_OR_RETURN(const auto policy, PolicyTrainer::Create(options));
      SYNCOPATE_RETURN_IF_ERROR(MeasureOffload(variant.name, *policy, batch, tell));
    }
    return absl::OkStatus();
  }

  // Steps without and with a copy that begins right before them, alternately. The first copy also allocates host
  // memory.
  absl::Status Save(const TellLine& tell) {
    PolicyTrainer::Options options = PolicyOptions(DeviceName());
    options.arenas = StateArenasOn(device_);
    SYNCOPATE_ASSIGN_OR_RETURN(const auto policy, PolicyTrainer::Create(options));
    const TrainBatch batch(lengths_, shape_, random_);
    absl::Status stepped;
    auto step_once = [&] { stepped.Update(policy->Step(batch.groups()).status()); };
    Warm(step_once);
    std::vector<double> step_ms, saved_step_ms, held_ms, copied_ms, alone_ms;
    double gib = 0;
    for (int i = 0; i <= arguments_.steps && stepped.ok(); ++i) {
      absl::Time begin = Clock::Real()->Now();
      step_once();
      step_ms.push_back(MillisecondsSince(begin));
      SYNCOPATE_ASSIGN_OR_RETURN(const uint64_t digest, policy->Digest());
      begin = Clock::Real()->Now();
      SYNCOPATE_ASSIGN_OR_RETURN(const auto snapshot, policy->TakeSnapshot(""));
      held_ms.push_back(MillisecondsSince(begin));
      // The thread that writes checkpoints does the same.
      auto copied = std::async(std::launch::async, [&]() -> absl::StatusOr<double> {
        SYNCOPATE_RETURN_IF_ERROR(snapshot->FinishCopy());
        return MillisecondsSince(begin);
      });
      step_once();
      saved_step_ms.push_back(MillisecondsSince(begin));
      SYNCOPATE_ASSIGN_OR_RETURN(const double copied_after_ms, copied.get());
      copied_ms.push_back(copied_after_ms);
      if (CombineDigests(DigestBuckets(snapshot->manifest, snapshot->arenas[0].get())) != digest) {
        return Error(absl::StatusCode::kInternal, "DIGEST_CHANGED", "the copy is not of the step that it began after");
      }
      gib = 3.0 * static_cast<double>(snapshot->manifest.arena_bytes()) / (1 << 30);
    }
    SYNCOPATE_RETURN_IF_ERROR(stepped);
    for (int i = 0; i < kCopiesAlone; ++i) {
      const absl::Time begin = Clock::Real()->Now();
      SYNCOPATE_ASSIGN_OR_RETURN(const auto snapshot, policy->TakeSnapshot(""));
      SYNCOPATE_RETURN_IF_ERROR(snapshot->FinishCopy());
      alone_ms.push_back(MillisecondsSince(begin));
    }
    const double first_ms = held_ms.front();
    for (auto* figures : {&step_ms, &saved_step_ms, &held_ms, &copied_ms}) figures->erase(figures->begin());
    tell({{"case", name_},
          {"model", arguments_.model},
          {"layers", shape_.num_hidden_layers},
          {"device", device_.str()},
          {"tokens", arguments_.tokens},
          {"first_ms", first_ms},
          {"held_ms", Median(held_ms)},
          {"step_ms", Median(step_ms)},
          {"saved_step_ms", Median(saved_step_ms)},
          {"copied_ms", Median(copied_ms)},
          {"alone_ms", Median(alone_ms)},
          {"copied_gib", gib},
          {"gib_per_second", gib / Median(alone_ms) * 1e3}});
    return absl::OkStatus();
  }

  // "stage" or "export".
  absl::Status Beside(const TellLine& tell) {
    PolicyTrainer::Options options = PolicyOptions(DeviceName());
    options.arenas = StateArenasOn(device_);
    SYNCOPATE_ASSIGN_OR_RETURN(const auto policy, PolicyTrainer::Create(options));
    const TrainBatch batch(lengths_, shape_, random_);
    absl::Status stepped;
    Warm([&] { stepped.Update(policy->Step(batch.groups()).status()); });
    SYNCOPATE_RETURN_IF_ERROR(stepped);
    const BesideSteps asked{.shape = shape_,
                            .device = device_.is_cpu() ? 0 : static_cast<int>(device_.index()),
                            .on_gpu = !device_.is_cpu(),
                            .steps = arguments_.steps};
    SYNCOPATE_ASSIGN_OR_RETURN(const json measured, name_ == "stage" ? MeasureStaging(*policy, batch, asked)
                                                                     : MeasureExport(*policy, batch, asked));
    json line = {{"case", name_},
                 {"model", arguments_.model},
                 {"layers", shape_.num_hidden_layers},
                 {"vocabulary", shape_.vocab_size},
                 {"device", device_.str()},
                 {"tokens", arguments_.tokens}};
    line.update(measured);
    tell(line);
    return absl::OkStatus();
  }

 private:
  absl::Status MeasureOffload(const char* name, PolicyTrainer& policy, const TrainBatch& batch, const TellLine& tell) {
    if (!device_.is_cpu()) c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
    // The memory of the state during an update.
    SYNCOPATE_RETURN_IF_ERROR(policy.BeginUse());
    const int64_t arenas = policy.memory().reserved_bytes - ReservedBytes();
    SYNCOPATE_RETURN_IF_ERROR(policy.EndUse());
    policy.TakeMoves();
    std::vector<double> ms, moving_ms, pass_ms;
    trainer::PolicyMoves moves;
    // The first step also allocates host memory.
    for (int step = 0; step <= arguments_.steps; ++step) {
      const absl::Time begin = Clock::Real()->Now();
      SYNCOPATE_ASSIGN_OR_RETURN(const trainer::StepFigures metrics, policy.Step(batch.groups()));
      const double took = MillisecondsSince(begin);
      moves = policy.TakeMoves();
      const trainer::StateMoves all[] = {moves.parameters, moves.optimizer, moves.reference};
      double moved = 0;
      for (const trainer::StateMoves& one : all) moved += (one.load_seconds + one.offload_seconds) * 1e3;
      if (step == 0) continue;
      ms.push_back(took);
      moving_ms.push_back(moved);
      pass_ms.push_back((metrics.proximal_seconds + metrics.reference_seconds) * 1e3);
    }
    const trainer::PolicyMemory rest = policy.memory();
    SYNCOPATE_ASSIGN_OR_RETURN(const uint64_t digest, policy.Digest());
    auto of = [](const trainer::StateMoves& one) {
      return json{{"load_ms", one.load_seconds * 1e3}, {"offload_ms", one.offload_seconds * 1e3}, {"bytes", one.bytes}};
    };
    constexpr double kMiB = 1 << 20;
    tell({{"case", name_},
          {"model", arguments_.model},
          {"device", device_.str()},
          {"tokens", arguments_.tokens},
          {"variant", name},
          {"ms", Median(ms)},
          {"moving_ms", Median(moving_ms)},
          {"pass_ms", Median(pass_ms)},
          {"parameters", of(moves.parameters)},
          {"optimizer", of(moves.optimizer)},
          {"reference", of(moves.reference)},
          {"moved_mib",
           static_cast<double>(moves.parameters.bytes + moves.optimizer.bytes + moves.reference.bytes) / kMiB},
          {"at_rest_parameter_bytes", rest.parameter_bytes},
          {"at_rest_optimizer_bytes", rest.optimizer_bytes},
          {"at_rest_reserved_gib", static_cast<double>(rest.reserved_bytes) / kMiB / 1024},
          {"peak_gib", GetMemory(device_).allocated_peak + static_cast<double>(arenas) / kMiB / 1024},
          {"digest", absl::StrCat(absl::Hex(digest, absl::kZeroPad16))}});
    return absl::OkStatus();
  }

  // Memory of the allocator only.
  int64_t ReservedBytes() const {
    return device_.is_cpu()
               ? 0
               : c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index()).reserved_bytes[0].current;
  }

  void Warm(const std::function<void()>& once) const {
    const absl::Time until = Clock::Real()->Now() + absl::Seconds(arguments_.warm_seconds);
    do once();
    while (Clock::Real()->Now() < until);
  }

  absl::StatusOr<std::unique_ptr<PolicyTrainer>> MakePolicy() const {
    return PolicyTrainer::Create(PolicyOptions(DeviceName()));
  }

  std::string DeviceName() const {
    return device_.is_cpu() ? "cpu" : absl::StrCat("cuda:", static_cast<int>(device_.index()));
  }

  PolicyTrainer::Options PolicyOptions(const std::string& device) const {
    PolicyTrainer::Options options;
    options.model = shape_;
    options.optimizer.learning_rate = 1e-6;
    options.optimizer.weight_decay = 0.1;
    options.step.micro_batch_tokens =
        arguments_.micro_batch_tokens > 0 ? arguments_.micro_batch_tokens : arguments_.tokens;
    options.memory.empty_cache = arguments_.empty_cache == "always"        ? trainer::EmptyCache::kAlways
                                 : arguments_.empty_cache == "on_pressure" ? trainer::EmptyCache::kOnPressure
                                                                           : trainer::EmptyCache::kNever;
    options.step.recompute = ToRecompute(arguments_);
    options.step.float32_logits = arguments_.float32_logits;
    options.step.deterministic = deterministic_;
    options.reduce_dtype = arguments_.reduce_dtype == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
    options.seed = kSeed;
    options.device = device;
    return options;
  }

  // The case makes 1 / `parts` of a step's operations.
  json MakeLine(double ms, double parts) const {
    const Memory memory = GetMemory(device_);
    return {{"case", name_},
            {"model", arguments_.model},
            {"layers", shape_.num_hidden_layers},
            {"vocabulary", shape_.vocab_size},
            {"device", device_.str()},
            {"tokens", arguments_.tokens},
            {"lengths", arguments_.ragged ? "ragged" : absl::StrCat(arguments_.longest)},
            {"recompute", arguments_.recompute},
            {"float32_logits", arguments_.float32_logits},
            {"deterministic", deterministic_},
            {"lora", arguments_.lora_rank},
            {"ms", ms},
            {"tokens_per_second", static_cast<double>(arguments_.tokens) / ms * 1e3},
            {"model_tflops", StepFlops(shape_, lengths_) / parts / ms / 1e9},
            {"allocated_peak_gib", memory.allocated_peak},
            {"reserved_peak_gib", memory.reserved_peak}};
  }

  const std::string name_;
  const bool deterministic_;
  const TrainArguments& arguments_;
  const model::ModelConfig& shape_;
  const at::Device device_;
  std::mt19937_64 random_;
  const std::vector<int64_t> lengths_;
};

}  // namespace

absl::Status RunTrainCase(const std::string& name, const TrainArguments& arguments, const model::ModelConfig& shape,
                          at::Device device, const TellLine& tell) {
  if (arguments.ranks > 1 && name != "policy") {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE", "with --ranks there is the case policy alone");
  }
  Case one(name, arguments, shape, device);
  if (name == "memory") return one.MemoryOverSteps(tell);
  if (name == "offload") return one.Offload(tell);
  if (name == "save") return one.Save(tell);
  if (name == "stage" || name == "export") return one.Beside(tell);
  for (const bool deterministic : {false, true}) {
    if (deterministic && !arguments.deterministic) continue;
    Case made(name, arguments, shape, device, deterministic);
    if (name == "policy") {
      SYNCOPATE_ASSIGN_OR_RETURN(const json line, arguments.ranks > 1 ? made.PolicyOfRanks() : made.Policy());
      tell(line);
    } else {
      tell(made.Program());
    }
    // Memory of this case is of no use to the next one.
    if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
  }
  return absl::OkStatus();
}

}  // namespace syncopate::bench
