#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/worker.h"
#include "rollouter/reward/http_scorer.h"
#include "rollouter/reward/judge_messages.h"
#include "rollouter/reward/remote_scorer.h"

namespace syncopate::rollouter {

// Rewards from a language model behind an OpenAI endpoint: each answer becomes a prompt, and a pattern finds the reward
// in what the model says about it. Requests, connections and availability are those of HttpScorer. Thread-safe.
//
// Judgements of temperature 0 are kept by their whole prompt as they come, also those of an item that is cancelled, and
// equal prompts of one item are asked once: they would get the same judgement. Others are asked anew each time.
//
// The tokens that the endpoint says it used are counted, whatever becomes of the judgement; the trainer keeps the run
// within its budget (reward.judge_tokens). A request that ends before its response has come says nothing.
//
// While the endpoint refuses the key (401; or 403, before it has judged with this key), or there is none to be read, the
// judge is away: the error is of reason kScorerRefused and names reward.judge_url and reward.judge_key_file.
class JudgeScorer final : public RemoteScorer {
 public:
  struct Options {
    std::string url;  // ".../v1"
    JudgeSampling sampling = {};
    std::string prompt;
    std::string pattern;
    bool needs_usage = false;           // a judgement fails if its endpoint does not say how many tokens it used
    std::string key_file = {};          // "": no key is sent
    int64_t connections = 8;            // the largest number of requests in progress
    int64_t max_kept_bytes = 64 << 20;  // of prompts whose judgements are kept; the oldest go first
    absl::Duration probe_every = absl::Seconds(1);
  };

  // Errors of HttpScorer::Start, JudgePrompt::Parse and Pattern::Compile; INVALID_ARGUMENT or another error of the file
  // system if the key cannot be read.
  static absl::StatusOr<std::unique_ptr<JudgeScorer>> Start(Options options);
  ~JudgeScorer() override;  // drops what is in progress without calling `done`

  absl::Status Availability(const std::string& reward) const override { return http_->Availability(reward); }
  void Score(RemoteItem item, Done done) override;
  void Cancel(const std::string& id) override { http_->Cancel(id); }
  void SetAvailabilityListener(std::function<void()> changed) override {
    http_->SetAvailabilityListener(std::move(changed));
  }
  int64_t used_tokens() const override { return used_tokens_; }

 private:
  JudgeScorer(Options options, JudgePrompt prompt, Pattern pattern);

  absl::StatusOr<std::string> ReadKey() const;
  HttpScorer::Protocol MakeProtocol();
  absl::StatusOr<float> ReadReward(absl::string_view body) const;
  absl::Status Refuse(const std::string& what) const;
  void NoteEnd(const std::vector<HttpAnswer>& asked, absl::string_view body);
  void Keep(const std::string& prompt, float reward);
  bool KeepsJudgements() const { return options_.sampling.temperature == 0; }

  const Options options_;
  const JudgePrompt prompt_;
  const Pattern pattern_;
  Mutex mutex_;
  std::unordered_map<std::string, float> kept_ ABSL_GUARDED_BY(mutex_);  // reward by prompt
  std::deque<std::string> kept_order_ ABSL_GUARDED_BY(mutex_);           // oldest first
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> used_tokens_ = 0;
  Worker answers_{1 << 16};           // calls `done` of items that need no request
  std::unique_ptr<HttpScorer> http_;  // last: its thread uses the members above
};

}  // namespace syncopate::rollouter
