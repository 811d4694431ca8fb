#include "services/endpoint/answer.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace syncopate::endpoint {

class Answer::Sink final : public rollouter::GenerationSink {
 public:
  Sink(std::shared_ptr<Answer> answer, int32_t first_choice)
      : answer_(std::move(answer)), first_choice_(first_choice) {}
  bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion&,
               const std::vector<TokenLogProb>& top) override {
    return answer_->AddToken(first_choice_ + sample, {.token = token, .logprob = logprob, .top = top});
  }
  void OnFinished(int32_t sample, Trajectory trajectory) override {
    answer_->EndChoice(first_choice_ + sample, trajectory);
  }

 private:
  const std::shared_ptr<Answer> answer_;
  const int32_t first_choice_;
};

Answer::Answer(Options options) : options_(std::move(options)), writer_(options_.writer), left_(options_.choices) {
  texts_.reserve(static_cast<size_t>(options_.choices));
  for (int32_t i = 0; i < options_.choices; ++i) {
    texts_.emplace_back(options_.tokenizer.get(), &options_.stops, &options_.end_tokens);
  }
  MutexLock lock(&mutex_);
  if (!options_.stream) whole_.resize(static_cast<size_t>(options_.choices));
}

std::shared_ptr<rollouter::GenerationSink> Answer::SinkFor(int32_t first_choice) {
  return std::make_shared<Sink>(shared_from_this(), first_choice);
}

void Answer::Begin() {
  if (options_.stream) options_.exchange->Stream(shared_from_this());
}

void Answer::Leave() {
  MutexLock lock(&mutex_);
  gone_ = true;
}

void Answer::CountEnd(RequestResult result) {
  if (!is_counted_.exchange(true)) options_.counts->CountEnd(result);
}

bool Answer::AddToken(int32_t choice, AnswerToken token) {
  AnswerText& text = texts_[static_cast<size_t>(choice)];
  token.text = text.Add(token.token);
  {
    MutexLock lock(&mutex_);
    if (gone_ || !failure_.ok()) return false;
    // Broken weights show first as log-probabilities that are no numbers.
    if (!std::isfinite(token.logprob)) {
      failure_ = Error(absl::StatusCode::kInternal, "BAD_LOGPROB", "the model's numbers have overflowed");
      return false;
    }
    if (++completion_tokens_ == 1) options_.counts->ObserveFirstToken(Clock::Real()->Now() - options_.began);
    options_.counts->CountToken();
    AddLocked({.choice = choice, .token = std::move(token)});
  }
  if (options_.stream) options_.exchange->Wake();
  return !text.stopped();
}

void Answer::EndChoice(int32_t choice, const Trajectory& trajectory) {
  AnswerEnd end = {trajectory.finish, texts_[static_cast<size_t>(choice)].End(), trajectory.spans};
  bool ended = false;
  {
    MutexLock lock(&mutex_);
    if (trajectory.finish == FinishReason::kAborted && failure_.ok()) {
      failure_ = Error(absl::StatusCode::kUnavailable, "ABORTED",
                       "the server has ended this request before its answer was complete; try again");
    }
    AddLocked({.choice = choice, .end = std::move(end)});
    ended = --left_ == 0;
  }
  if (options_.stream) return options_.exchange->Wake();
  if (ended) options_.exchange->Respond([self = shared_from_this()] { return self->WholeResponse(); });
}

void Answer::AddLocked(Event event) {
  if (options_.stream) return events_.push_back(std::move(event));
  AnswerWriter::Choice& choice = whole_[static_cast<size_t>(event.choice)];
  if (event.token.has_value()) {
    choice.tokens.push_back(*std::move(event.token));
  } else {
    choice.end = std::move(event.end);
  }
}

bool Answer::Take(std::string* bytes) {
  // So much at once, so that one long answer does not occupy the server's thread.
  constexpr size_t kMostBytes = 32 << 10;
  while (bytes->size() < kMostBytes) {
    Event event;
    {
      MutexLock lock(&mutex_);
      if (!failure_.ok()) {
        CountEnd(RequestResult::kFailed);
        bytes->append(AnswerWriter::ErrorEvent(failure_));
        return true;
      }
      if (events_.empty()) {
        if (left_ > 0) return false;
        CountEnd(RequestResult::kOk);
        bytes->append(writer_.LastEvents(UsageLocked()));
        return true;
      }
      event = std::move(events_.front());
      events_.pop_front();
    }
    bytes->append(event.token.has_value() ? writer_.TokenEvent(event.choice, *event.token)
                                          : writer_.EndEvent(event.choice, event.end));
  }
  return false;
}

http::Response Answer::WholeResponse() {
  MutexLock lock(&mutex_);
  CountEnd(failure_.ok() ? RequestResult::kOk : ResultForCode(HttpCode(failure_)));
  if (!failure_.ok()) return {.code = HttpCode(failure_), .body = ErrorBody(failure_)};
  return {.body = writer_.Whole(whole_, UsageLocked())};
}

Usage Answer::UsageLocked() const { return {options_.prompt_tokens, completion_tokens_}; }

}  // namespace syncopate::endpoint
