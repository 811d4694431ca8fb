#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "syncopate/v1/rollout.grpc.pb.h"

namespace syncopate::bench {

// A client of one rollouter that has it generate one answer after the other, and records when each token came: what
// generation is worth to a user while weights arrive. A call that fails is made again. Thread-safe.
class TokenStream {
 public:
  struct Options {
    std::string rollouter;       // host:port
    int32_t answer_tokens = 64;  // of each answer; it ends earlier only at the end of the model's context
  };
  // INVALID_ARGUMENT reason BAD_ADDRESS.
  static absl::StatusOr<std::unique_ptr<TokenStream>> Start(const Options& options);
  // Cancels the running call.
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  using Window = std::pair<absl::Time, absl::Time>;
  // The arrival times so far, of all but the tokens before the last million and before the last Forget.
  std::vector<absl::Time> arrivals() const;
  void Forget();

 private:
  TokenStream(const Options& options, std::shared_ptr<grpc::Channel> channel);
  void Run();
  void ReadAnswer(int64_t number);

  static constexpr size_t kKept = 1 << 20;
  const Options options_;
  const std::unique_ptr<v1::RolloutService::Stub> stub_;
  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the running call
  std::deque<absl::Time> arrivals_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the other members
};

// How many of the intervals between neighbouring arrivals lie within the windows; one at an edge counts in part.
double StepsWithin(const std::vector<absl::Time>& arrivals, const std::vector<TokenStream::Window>& windows);
// The longest interval between neighbouring arrivals.
absl::Duration LongestGap(const std::vector<absl::Time>& arrivals);

}  // namespace syncopate::bench
