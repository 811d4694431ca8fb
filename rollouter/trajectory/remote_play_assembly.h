#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/status.h"
#include "rollouter/engine/generation.h"
#include "rollouter/environment/remote_environment.h"
#include "rollouter/trajectory/episode.h"
#include "rollouter/trajectory/group_assembly.h"
#include "rollouter/trajectory/play_assembly.h"

namespace syncopate::rollouter {

// Collects the samples of one lease, each of which plays an episode of its own with an environment outside this process.
// While the environment thinks, the sample is parked. Its answers come on any thread.
class RemotePlayAssembly final : public GenerationSink, public std::enable_shared_from_this<RemotePlayAssembly> {
 public:
  // EngineLoop's methods for the lease's request, which starts parked. All of them only queue, also `abort`, which ends
  // all samples.
  struct Engine {
    std::function<absl::Status(int32_t sample, std::vector<int32_t> given)> begin;
    std::function<absl::Status(int32_t sample, std::vector<int32_t> given)> extend;
    std::function<void(int32_t sample)> rewind;
    std::function<void(int32_t sample)> end;
    std::function<void()> abort;
  };
  struct Options {
    std::string id;           // of the lease's request: names its episodes
    std::string environment;  // the name of the one to play with
    const PlayRules* rules = nullptr;
    RemoteEnvironment* remote = nullptr;
    // The number of calls that the environment has not answered yet: the lease waits for these. Null: nobody asks.
    std::shared_ptr<std::atomic<int64_t>> open_calls = nullptr;
  };

  // Parameters and `done` are those of PlayAssembly. What `options` points to must outlive the assembly. `done` also
  // gets
  //   ABORTED (reason ENVIRONMENT_FAILED)   the plays of a sample failed as often as they may be tried
  RemotePlayAssembly(const Lease& lease, const MemberId& member, GroupAssembly::Done done,
                     std::shared_ptr<TokenCount> made, const StopRules* stops, const Options& options, Engine engine);

  // Opens the episodes. Call once, when the request is submitted.
  void Start();

  bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
               const std::vector<TokenLogProb>& top) override {
    return assembly_.OnToken(sample, token, logprob, version, top);
  }
  bool OnTurnEnded(int32_t sample, FinishReason finish, const Trajectory& so_far) override;
  // An aborted sample cancels what its environment is doing.
  void OnFinished(int32_t sample, Trajectory trajectory) override;

 private:
  struct Player {
    Episode episode;
    int32_t plays = 0;                 // opened
    int32_t turn = 0;                  // of the present play
    std::vector<int32_t> tokens = {};  // that the policy wrote in it
  };

  // Does what the episode asks for. Calls the engine and the environment under the lock, so that what is done to a
  // sample stays in the order of its events; both only queue.
  void Obey(int32_t sample, Episode::Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Call(int32_t sample, const Episode::Action& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnSaid(int32_t sample, int64_t call, const absl::StatusOr<EnvironmentMessage>& said);
  void Fail(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountCalls(int64_t change) {
    if (options_.open_calls != nullptr) options_.open_calls->fetch_add(change, std::memory_order_relaxed);
  }
  // What the policy wrote in `turn`, with its calls of tools.
  RemoteAction ReadAction(int32_t turn, const std::vector<int32_t>& tokens, FinishReason finish) const;
  std::string EpisodeId(int32_t sample) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status failure() const;

  const Lease lease_;
  const Options options_;
  const Engine engine_;
  const std::shared_ptr<const text::chat::TextParameters> tools_;  // of the row's tools; null: it has none
  mutable Mutex mutex_;
  std::vector<Player> players_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of an episode: the group is not submitted
  GroupAssembly assembly_;                        // used on the engine's thread alone
};

}  // namespace syncopate::rollouter
