#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace syncopate::endpoint {

// How a request for answers ended.
enum class RequestResult {
  kOk,
  kRefused,  // the client's fault: 4xx but 429
  kBusy,     // 429
  kFailed,   // 5xx, or an error at the end of a stream
  kLeft,     // the client left before it had the answer
};

// The result for an HTTP code.
RequestResult ResultForCode(int code);

// What an endpoint has done since its process began. Thread-safe.
class RequestCounts {
 public:
  static constexpr std::array<double, 14> kFirstTokenBounds = {.001, .0025, .005, .01, .025, .05, .1,
                                                               .25,  .5,    1,    2.5, 5,    10,  30};  // seconds
  struct Figures {
    std::array<int64_t, 5> ended = {};  // by RequestResult
    int64_t under_way = 0;              // requests that were accepted and have not ended
    int64_t prompt_tokens = 0;
    int64_t completion_tokens = 0;
    std::array<int64_t, kFirstTokenBounds.size() + 1> first_token = {};  // requests between two bounds
    double first_token_seconds = 0;                                      // the sum of all
  };

  void CountEnd(RequestResult result) { ++ended_[static_cast<size_t>(result)]; }
  void CountPrompt(int64_t tokens) { prompt_tokens_ += tokens; }
  void CountToken() { ++completion_tokens_; }
  // The time from a request's arrival to the first token of its answers.
  void ObserveFirstToken(absl::Duration time);
  // The number of requests under way, which the caller counts up and down.
  std::atomic<int64_t>& under_way() { return under_way_; }

  Figures GetFigures() const;

 private:
  std::array<std::atomic<int64_t>, 5> ended_ = {};
  std::atomic<int64_t> under_way_ = 0;
  std::atomic<int64_t> prompt_tokens_ = 0;
  std::atomic<int64_t> completion_tokens_ = 0;
  std::array<std::atomic<int64_t>, kFirstTokenBounds.size() + 1> first_token_ = {};
  std::atomic<int64_t> first_token_micros_ = 0;
};

}  // namespace syncopate::endpoint
