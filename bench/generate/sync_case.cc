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

// Keeps `batch` sequences running: 512 tokens in, 512 out; the first ones are shorter, so that they do not all end
// together.
class SteadyLoad {
 public:
  SteadyLoad(EngineWorld& world, int32_t batch) : world_(world), batch_(batch) {}

  absl::Status Step() {
    for (; asked_ - sink_->ended < batch_; ++asked_) {
      rollouter::GenerationRequest request;
      const uint64_t seed = 1000000 + static_cast<uint64_t>(asked_);
      for (uint64_t i = 0; i < 512; ++i) {
        request.prompt_ids.push_back(static_cast<int32_t>(Philox4x32(seed, i)[0] % world_.config().vocab_size));
      }
      request.sampling.max_new_tokens = asked_ < batch_ ? 1 + static_cast<int32_t>(asked_ * 512 / batch_) : 512;
      request.seeds = {seed};
      SYNCOPATE_RETURN_IF_ERROR(world_.engine().CheckShape(request));
      world_.engine().Add(std::move(request), sink_);
    }
    return world_.engine().Step();
  }

 private:
  EngineWorld& world_;
  const int32_t batch_;
  const std::shared_ptr<CountingSink> sink_ = std::make_shared<CountingSink>();
  int64_t asked_ = 0;
};

// The receiver's part of a sync, each second, on its own thread; the engine's thread installs the received weights.
class SecondlySyncs {
 public:
  // `source` is device memory that GPU 0 can read, as large as a weight set.
  SecondlySyncs(WeightArenas& arenas, const Manifest& manifest, const char* source, cuda::Stream stream)
      : arenas_(arenas), source_(source), bytes_(manifest.arena_bytes()), stream_(std::move(stream)) {
    for (int64_t begin = 0; begin < bytes_; begin += kBucketBytes) {
      contents_.buckets.push_back({begin, std::min(bytes_, begin + kBucketBytes)});
    }
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      contents_.numbers.push_back({manifest.ranges()[i], manifest.tensors()[i].dtype, manifest.tensors()[i].name});
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~SecondlySyncs() { Stop().IgnoreError(); }

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
    for (;; next += std::chrono::seconds(1)) {
      {
        MutexLock lock(&mutex_);
        auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
        const double left = -SecondsSince(next);
        if (mutex_.AwaitWithTimeout(Condition(&done), absl::Seconds(std::max(0.0, left)))) return;
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
  synchronizer::ShadowContents contents_;
  absl::Status status_;            // the thread's, until it is joined
  std::vector<double> transfers_;  // the thread's, until it is joined
  Mutex mutex_;
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

double GetShare(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace

absl::StatusOr<json> MeasureSyncs(EngineWorld& world, int32_t batch, double seconds) {
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

  SteadyLoad load(world, batch);
  auto nothing = [] { return absl::OkStatus(); };
  SYNCOPATE_RETURN_IF_ERROR(ComputeRate(world, load, seconds / 8, nothing).status());  // warm-up
  SYNCOPATE_ASSIGN_OR_RETURN(const double before, ComputeRate(world, load, seconds / 4, nothing));
  std::vector<double> waits, exchanges;
  SecondlySyncs syncs(engine.backend().arenas(), manifest, source.data(), std::move(stream));
  SYNCOPATE_ASSIGN_OR_RETURN(const double beside, ComputeRate(world, load, seconds, [&]() -> absl::Status {
                               if (!syncs.Arrived()) return absl::OkStatus();
                               SYNCOPATE_RETURN_IF_ERROR(InstallArrived(engine, waits, exchanges));
                               syncs.Installed();
                               return absl::OkStatus();
                             }));
  SYNCOPATE_RETURN_IF_ERROR(syncs.Stop());
  SYNCOPATE_ASSIGN_OR_RETURN(const double after, ComputeRate(world, load, seconds / 4, nothing));
  engine.Abort("");
  while (engine.HasWork()) SYNCOPATE_RETURN_IF_ERROR(engine.Step());
  if (exchanges.empty()) return Error(absl::StatusCode::kInternal, "BENCH", "no weights were installed");
  auto ms = [](double value) { return Rounded(value * 1e3, 1e-3); };
  return json({{"event", "generate"},
               {"case", "sync"},
               {"batch", batch},
               {"seconds", seconds},
               {"source_gpu", from},
               {"installs", exchanges.size()},
               {"tokens_per_second", std::round(beside)},
               {"calm_tokens_per_second", {std::round(before), std::round(after)}},
               {"kept", Rounded(2 * beside / (before + after), 1e-4)},
               {"transfer_ms", ms(GetShare(syncs.transfers(), 0.5))},
               {"wait_ms", {{"p50", ms(GetShare(waits, 0.5))}, {"max", ms(GetShare(waits, 1))}}},
               {"exchange_ms", {{"p50", ms(GetShare(exchanges, 0.5))}, {"max", ms(GetShare(exchanges, 1))}}}});
}

}  // namespace syncopate::bench
