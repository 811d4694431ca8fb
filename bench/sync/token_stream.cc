#include "bench/sync/token_stream.h"

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "services/rpc/channel.h"

namespace syncopate::bench {
namespace {

constexpr absl::Duration kStreamLimit = absl::Minutes(2);
constexpr absl::Duration kRetryAfter = absl::Milliseconds(20);  // after a call that failed

}  // namespace

absl::StatusOr<std::unique_ptr<TokenStream>> TokenStream::Start(const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(options.rollouter));
  return std::unique_ptr<TokenStream>(new TokenStream(options, std::move(channel)));
}

TokenStream::TokenStream(const Options& options, std::shared_ptr<grpc::Channel> channel)
    // The thread is the last member, so it starts when all members that it uses exist.
    : options_(options), stub_(v1::RolloutService::NewStub(std::move(channel))), thread_([this] { Run(); }) {}

TokenStream::~TokenStream() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  thread_.join();
}

void TokenStream::Run() {
  for (int64_t number = 0;; ++number) {
    ReadAnswer(number);
    MutexLock lock(&mutex_);
    if (stopping_) return;
  }
}

void TokenStream::ReadAnswer(int64_t number) {
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(kStreamLimit));
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    call_ = &context;
  }
  v1::GenerateStreamRequest request;
  v1::GenerateRequest* generate = request.mutable_request();
  for (int token = 1; token <= 4; ++token) generate->add_prompt_ids(token);
  generate->mutable_sampling()->set_temperature(1);
  generate->mutable_sampling()->set_max_new_tokens(options_.answer_tokens);
  generate->set_seed(static_cast<uint64_t>(number));
  auto reader = stub_->GenerateStream(&context, request);
  for (v1::GenerateStreamResponse response; reader->Read(&response);) {
    MutexLock lock(&mutex_);
    arrivals_.push_back(Clock::Real()->Now());
    if (arrivals_.size() > kKept) arrivals_.pop_front();
  }
  const grpc::Status status = reader->Finish();
  MutexLock lock(&mutex_);
  call_ = nullptr;
  if (status.ok() || stopping_) return;
  // The rollouter may be between two lives, or have no weights yet.
  SYNCOPATE_LOG(kDebug, "%s answers %s", options_.rollouter, status.error_message());
  mutex_.AwaitWithTimeout(Condition(&stopping_), kRetryAfter);
}

std::vector<absl::Time> TokenStream::arrivals() const {
  MutexLock lock(&mutex_);
  return {arrivals_.begin(), arrivals_.end()};
}

void TokenStream::Forget() {
  MutexLock lock(&mutex_);
  arrivals_.clear();
}

double StepsWithin(const std::vector<absl::Time>& arrivals, const std::vector<TokenStream::Window>& windows) {
  double steps = 0;
  for (const auto& [begin, end] : windows) {
    auto at = std::upper_bound(arrivals.begin(), arrivals.end(), begin);
    if (at == arrivals.begin() && at != arrivals.end()) ++at;
    for (; at != arrivals.end(); ++at) {
      const absl::Time before = *std::prev(at);
      if (before >= end) break;
      const absl::Duration inside = std::min(*at, end) - std::max(before, begin);
      const absl::Duration whole = *at - before;
      // Tokens that came at once were made one after the other before.
      steps += whole > absl::ZeroDuration() ? absl::FDivDuration(inside, whole) : 1;
    }
  }
  return steps;
}

absl::Duration LongestGap(const std::vector<absl::Time>& arrivals) {
  absl::Duration longest;
  for (size_t i = 1; i < arrivals.size(); ++i) longest = std::max(longest, arrivals[i] - arrivals[i - 1]);
  return longest;
}

}  // namespace syncopate::bench
