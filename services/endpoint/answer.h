#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "rollouter/engine/generation.h"
#include "services/endpoint/answer_text.h"
#include "services/endpoint/answer_writer.h"
#include "services/endpoint/request_counts.h"
#include "services/http/http_server.h"

namespace syncopate::endpoint {

// One request for answers, from its first token to its response. The engine's thread adds tokens and finds stops; the
// HTTP server's thread writes JSON from them when the client can take it, so a slow client costs the engine nothing, and
// memory for the tokens alone. Thread-safe.
class Answer final : public http::StreamSource, public std::enable_shared_from_this<Answer> {
 public:
  struct Options {
    std::shared_ptr<http::Exchange> exchange;
    bool stream = false;
    std::vector<std::string> stops = {};
    std::vector<int32_t> end_tokens = {};
    std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer = nullptr;  // may be null
    AnswerWriter::Options writer = {};
    int32_t choices = 1;
    int64_t prompt_tokens = 0;
    std::shared_ptr<RequestCounts> counts;
    absl::Time began;  // the request's arrival
    // Kept until the response is sent: the request's place among the most that may be under way.
    std::shared_ptr<void> place = nullptr;
  };
  explicit Answer(Options options);

  // Begins the response of a stream. Call it when the engine has accepted every prompt.
  void Begin();
  // The sink for the answers to one prompt, whose first sample is `first_choice`.
  std::shared_ptr<rollouter::GenerationSink> SinkFor(int32_t first_choice);
  // No token is wanted any more.
  void Leave();
  // Counts how the request ended; the first call decides.
  void CountEnd(RequestResult result);

  // StreamSource
  bool Take(std::string* bytes) override;

 private:
  class Sink;
  struct Event {
    int32_t choice = 0;
    std::optional<AnswerToken> token = {};  // nullopt: `end`
    AnswerEnd end = {};
  };

  bool AddToken(int32_t choice, AnswerToken token);
  void EndChoice(int32_t choice, const Trajectory& trajectory);
  void AddLocked(Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  http::Response WholeResponse();
  Usage UsageLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::vector<AnswerText> texts_;  // by choice; used on the engine's thread
  AnswerWriter writer_;            // used on the HTTP server's thread
  Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::vector<AnswerWriter::Choice> whole_ ABSL_GUARDED_BY(mutex_);  // of a response that is no stream
  int32_t left_ ABSL_GUARDED_BY(mutex_);                             // choices that have not ended
  int64_t completion_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> is_counted_ = false;
};

}  // namespace syncopate::endpoint
