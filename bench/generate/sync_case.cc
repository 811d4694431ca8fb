#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/philox.h"
#include "base/status.h"
#include "bench/generate/engine_cases.h"
#include "bench/measure/figures.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/stream.h"
#include "model/transformer.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;
using rollouter::Engine;
using rollouter::WeightArenas;
using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kBucketBytes = int64_t{512} << 20;
constexpr absl::Duration kDeadline = absl::Seconds(30);

// Counts the answers that have ended.
class CountingSink final : public rollouter::GenerationSink {
 public:
  void OnFinished(int32_t, Trajectory) override { ++ended; }
  int64_t ended = 0;
};

// Keeps `batch` sequences asked for: 512 tokens in, `answer` out; the first ones are shorter, so that they do not all end
// together.
class SteadyLoad {
 public:
  SteadyLoad(EngineWorld& world, int32_t batch, int32_t answer) : world_(world), batch_(batch), answer_(answer) {}

  absl::Status Step() {
    for (; asked_ - sink_->ended < batch_; ++asked_) {
      rollouter::GenerationRequest request;
      const uint64_t seed = 1000000 + static_cast<uint64_t>(asked_);
      for (uint64_t i = 0; i < 512; ++i) {
        request.prompt_ids.push_back(static_cast<int32_t>(Philox4x32(seed, i)[0] % world_.config().vocab_size));
      }
      request.sampling.max_new_tokens = asked_ < batch_ ? 1 + static_cast<int32_t>(asked_ * answer_ / batch_) : answer_;
      request.seeds = {seed};
      SYNCOPATE_RETURN_IF_ERROR(world_.engine().CheckShape(request));
      world_.engine().Add(std::move(request), sink_);
    }
    return world_.engine().Step();
  }

 private:
  EngineWorld& world_;
  const int32_t batch_, answer_;
  const std::shared_ptr<CountingSink> sink_ = std::make_shared<CountingSink>();
  int64_t asked_ = 0;
};

// The receiver's part of a sync, each `every` seconds, on its own thread; the engine's thread lends the shadow's memory if
// it is borrowed, and installs the received weights.
class RegularSyncs {
 public:
  // `source` is device memory that GPU 0 can read, as large as a weight set.
  RegularSyncs(WeightArenas& arenas, const Manifest& manifest, const char* source, cuda::Stream stream, double every)
      : arenas_(arenas),
        source_(source),
        bytes_(manifest.arena_bytes()),
        stream_(std::move(stream)),
        every_(std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(every))) {
    for (int64_t begin = 0; begin < bytes_; begin += kBucketBytes) {
      contents_.buckets.push_back({begin, std::min(bytes_, begin + kBucketBytes)});
    }
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      contents_.numbers.push_back({manifest.ranges()[i], manifest.tensors()[i].dtype, manifest.tensors()[i].name});
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~RegularSyncs() { Stop().IgnoreError(); }

  // Whether a sync waits for the shadow's memory.
  bool WaitsForShadow() {
    MutexLock lock(&mutex_);
    return waits_;
  }
  void GiveShadow() {
    MutexLock lock(&mutex_);
    waits_ = false;
  }
  // Whether a weight set has arrived and waits for its install.
  bool Arrived() {
    MutexLock lock(&mutex_);
    return arrived_;
  }
  void Installed() {
    MutexLock lock(&mutex_);
    arrived_ = false;
  }
  // Stops the thread and returns its error, or OK.
  absl::Status Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  const std::vector<double>& transfers() const { return transfers_; }  // seconds; after Stop()

 private:
  void Run() {
    auto next = SteadyClock::now();
    for (;; next += every_) {
      {
        MutexLock lock(&mutex_);
        auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
        const double left = -SecondsSince(next);
        if (mutex_.AwaitWithTimeout(Condition(&done), absl::Seconds(std::max(0.0, left)))) return;
        waits_ = arenas_.borrowed_bytes() > 0;
        auto may_go_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waits_; };
        mutex_.Await(Condition(&may_go_on));
        if (stopping_) return;
      }
      const auto begin = SteadyClock::now();
      status_ = Receive();
      transfers_.push_back(SecondsSince(begin));
      MutexLock lock(&mutex_);
      if (!status_.ok()) return;
      arrived_ = true;
      auto goes_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !arrived_; };
      mutex_.Await(Condition(&goes_on));
    }
  }

  absl::Status Receive() {
    const cuda::DeviceScope device(0);
    SYNCOPATE_ASSIGN_OR_RETURN(const auto check, arenas_.BeginCheck(contents_));
    for (const ByteRange& bucket : contents_.buckets) {
      SYNCOPATE_RETURN_IF_ERROR(
          cuda::CudaStatus(cudaMemcpyAsync(arenas_.shadow() + bucket.begin, source_ + bucket.begin,
                                           static_cast<size_t>(bucket.size()), cudaMemcpyDefault, stream_.get()),
                           "copying weights"));
      check->Arrived(bucket, stream_.get());
    }
    return check->Finish(kDeadline).status();
  }

  WeightArenas& arenas_;
  const char* const source_;
  const int64_t bytes_;
  const cuda::Stream stream_;
  const SteadyClock::duration every_;
  synchronizer::ShadowContents contents_;
  absl::Status status_;            // the thread's, until it is joined
  std::vector<double> transfers_;  // the thread's, until it is joined
  Mutex mutex_;
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;
  bool arrived_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Tokens a second during `seconds` under the load; `between` is called before each step.
absl::StatusOr<double> ComputeRate(EngineWorld& world, SteadyLoad& load, double seconds,
                                   const std::function<absl::Status()>& between) {
  const int64_t tokens = world.engine().generated_tokens();
  const auto begin = SteadyClock::now();
  while (SecondsSince(begin) < seconds) {
    SYNCOPATE_RETURN_IF_ERROR(between());
    SYNCOPATE_RETURN_IF_ERROR(load.Step());
  }
  return static_cast<double>(world.engine().generated_tokens() - tokens) / SecondsSince(begin);
}

absl::Status InstallArrived(Engine& engine, std::vector<double>& waits, std::vector<double>& exchanges) {
  const auto begin = SteadyClock::now();
  SYNCOPATE_RETURN_IF_ERROR(engine.Synchronize());
  waits.push_back(SecondsSince(begin));
  const auto exchange = SteadyClock::now();
  PolicyVersion next = engine.policy().version();
  ++next.step;
  SYNCOPATE_RETURN_IF_ERROR(engine.policy().Install(next, /*digest=*/1));
  exchanges.push_back(SecondsSince(exchange));
  return absl::OkStatus();
}

// The engine's part of a sync, between two steps.
class EnginePart {
 public:
  EnginePart(Engine& engine, RegularSyncs& syncs) : engine_(engine), syncs_(syncs) {}

  absl::Status Advance() {
    // Behind the step that followed the install, as a rollouter's engine does it.
    if (std::exchange(returns_, false))
      SYNCOPATE_RETURN_IF_ERROR(Timed(returned, [&] { return engine_.ReturnShadow(); }));
    if (syncs_.WaitsForShadow()) {
      if (!std::exchange(lends_, true)) {
        asked_ = SteadyClock::now();
        engine_.Lend();
      }
      if (engine_.has_lent()) {
        closed.push_back(SecondsSince(asked_));
        SYNCOPATE_RETURN_IF_ERROR(Timed(taken, [&] { return engine_.TakeShadow(); }));
        syncs_.GiveShadow();
      }
    }
    if (!syncs_.Arrived()) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(InstallArrived(engine_, waits, exchanges));
    returns_ = std::exchange(lends_, false);
    if (returns_) lent += SecondsSince(asked_) - closed.back();
    syncs_.Installed();
    return absl::OkStatus();
  }
  absl::Status End() { return std::exchange(returns_, false) || lends_ ? engine_.ReturnShadow() : absl::OkStatus(); }

  std::vector<double> waits, exchanges;         // seconds
  std::vector<double> closed, taken, returned;  // until no step used the blocks; the mapping of memory there and back
  double lent = 0;                              // seconds

 private:
  template <typename Function>
  absl::Status Timed(std::vector<double>& times, const Function& function) {
    const auto begin = SteadyClock::now();
    const absl::Status status = function();
    times.push_back(SecondsSince(begin));
    return status;
  }

  Engine& engine_;
  RegularSyncs& syncs_;
  SteadyClock::time_point asked_;
  bool lends_ = false, returns_ = false;
};

double GetShare(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace

absl::StatusOr<json> MeasureSyncs(EngineWorld& world, const SyncLoad& sync) {
  const double seconds = sync.seconds;
  Engine& engine = world.engine();
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest manifest, model::MakeWireManifest(world.config(), DType::kBFloat16));
  int gpus = 0;
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(cudaGetDeviceCount(&gpus), "counting GPUs"));
  const int from = gpus > 1 ? 1 : 0;
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::DeviceBuffer source,
                             cuda::DeviceBuffer::Create(from, manifest.arena_bytes(), "the weights that are sent"));
  if (from != 0) {
    const cuda::DeviceScope device(0);
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(cudaDeviceEnablePeerAccess(from, 0), "reading another GPU's memory"));
  }
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpy(source.data(), engine.policy().live(), static_cast<size_t>(manifest.arena_bytes()), cudaMemcpyDefault),
      "copying the live weights"));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create(/*device=*/0));

  SteadyLoad load(world, sync.batch, sync.answer_tokens);
  auto nothing = [] { return absl::OkStatus(); };
  SYNCOPATE_RETURN_IF_ERROR(ComputeRate(world, load, seconds / 8, nothing).status());  // warm-up
  SYNCOPATE_ASSIGN_OR_RETURN(const double before, ComputeRate(world, load, seconds / 4, nothing));
  const double usage = engine.kv_usage();
  const rollouter::Scheduler::Counters counted = engine.counters();
  RegularSyncs syncs(engine.backend().arenas(), manifest, source.data(), std::move(stream), sync.every_seconds);
  EnginePart part(engine, syncs);
  SYNCOPATE_ASSIGN_OR_RETURN(const double beside,
                             ComputeRate(world, load, seconds, [&part] { return part.Advance(); }));
  const rollouter::Scheduler::Counters& counters = engine.counters();
  const json moved = {{"blocks", counters.moved_blocks - counted.moved_blocks},
                      {"preemptions", counters.preemptions - counted.preemptions},
                      {"swaps", counters.swaps - counted.swaps}};
  SYNCOPATE_RETURN_IF_ERROR(syncs.Stop());
  SYNCOPATE_RETURN_IF_ERROR(part.End());
  SYNCOPATE_ASSIGN_OR_RETURN(const double after, ComputeRate(world, load, seconds / 4, nothing));
  engine.Abort("");
  while (engine.HasWork()) SYNCOPATE_RETURN_IF_ERROR(engine.Step());
  if (part.exchanges.empty()) return Error(absl::StatusCode::kInternal, "BENCH", "no weights were installed");
  auto ms = [](double value) { return Rounded(value * 1e3, 1e-3); };
  // The median and the most; null without a shadow to borrow.
  auto both = [&ms](const std::vector<double>& values) -> json {
    if (values.empty()) return nullptr;
    return {{"p50", ms(GetShare(values, 0.5))}, {"max", ms(GetShare(values, 1))}};
  };
  return json({{"event", "generate"},
               {"case", "sync"},
               {"batch", sync.batch},
               {"answer_tokens", sync.answer_tokens},
               {"seconds", seconds},
               {"every_seconds", sync.every_seconds},
               {"kv_usage", Rounded(usage, 1e-3)},
               {"source_gpu", from},
               {"installs", part.exchanges.size()},
               {"tokens_per_second", std::round(beside)},
               {"calm_tokens_per_second", {std::round(before), std::round(after)}},
               {"kept", Rounded(2 * beside / (before + after), 1e-4)},
               {"transfer_ms", ms(GetShare(syncs.transfers(), 0.5))},
               {"wait_ms", both(part.waits)},
               {"exchange_ms", both(part.exchanges)},
               {"close_ms", both(part.closed)},
               {"take_ms", both(part.taken)},
               {"return_ms", both(part.returned)},
               {"lent_share", Rounded(part.lent / seconds, 1e-4)},
               {"lending_moved", moved}});
}

}  // namespace syncopate::bench
