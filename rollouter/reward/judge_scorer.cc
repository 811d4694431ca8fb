#include "rollouter/reward/judge_scorer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/credential_file.h"

namespace syncopate::rollouter {
namespace {

std::string CompletionsUrl(absl::string_view url) {
  while (absl::ConsumeSuffix(&url, "/")) continue;
  return absl::StrCat(url, "/chat/completions");
}

}  // namespace

absl::StatusOr<std::unique_ptr<JudgeScorer>> JudgeScorer::Start(Options options) {
  absl::StatusOr<JudgePrompt> prompt = JudgePrompt::Parse(options.prompt);
  if (!prompt.ok()) return Annotate(prompt.status(), "reward.judge_prompt");
  absl::StatusOr<Pattern> pattern = Pattern::Compile(options.pattern);
  if (!pattern.ok()) return Annotate(pattern.status(), "reward.judge_pattern");
  std::unique_ptr<JudgeScorer> judge(new JudgeScorer(std::move(options), *std::move(prompt), *std::move(pattern)));
  // A missing file is found here, not at the first answer.
  SYNCOPATE_RETURN_IF_ERROR(judge->ReadKey().status());
  SYNCOPATE_ASSIGN_OR_RETURN(judge->http_, HttpScorer::Start({.url = CompletionsUrl(judge->options_.url),
                                                              .batch = 1,
                                                              .connections = judge->options_.connections,
                                                              .probe_every = judge->options_.probe_every,
                                                              .protocol = judge->MakeProtocol()}));
  return judge;
}

JudgeScorer::JudgeScorer(Options options, JudgePrompt prompt, Pattern pattern)
    : options_(std::move(options)), prompt_(std::move(prompt)), pattern_(std::move(pattern)) {}

JudgeScorer::~JudgeScorer() {
  http_.reset();
  answers_.Stop();
}

absl::StatusOr<std::string> JudgeScorer::ReadKey() const {
  if (options_.key_file.empty()) return "";
  absl::StatusOr<std::string> text = ReadCredentialFile(options_.key_file, Secrecy::kSecret);
  if (!text.ok()) return Annotate(text.status(), "reward.judge_key_file");
  const absl::string_view key = absl::StripAsciiWhitespace(*text);
  // A line break would begin another header.
  const bool plain =
      std::all_of(key.begin(), key.end(), [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (!key.empty() && plain) return std::string(key);
  return Error(
      absl::StatusCode::kInvalidArgument, "BAD_KEY",
      absl::StrCat("reward.judge_key_file ", options_.key_file, " must hold one key, of visible ASCII characters"));
}

HttpScorer::Protocol JudgeScorer::MakeProtocol() {
  return {.service = "the judge",
          .write =
              [this](const std::vector<HttpAnswer>& answers) {
                return JudgeRequestBody(options_.sampling, answers.at(0).text);
              },
          .read = [this](absl::string_view body, size_t) -> absl::StatusOr<Rewards> {
            SYNCOPATE_ASSIGN_OR_RETURN(const float reward, ReadReward(body));
            return Rewards{RemoteReward{.value = reward}};
          },
          // An endpoint may repeat the key that it refuses, and errors are logged.
          .explain = [this](absl::string_view body) { return ExplainError(body, ReadKey().value_or("")); },
          .bearer = [this] { return ReadKey(); },
          .refuse = [this](const std::string& what) { return Refuse(what); },
          .ended = [this](const std::vector<HttpAnswer>& asked, absl::string_view body) { NoteEnd(asked, body); }};
}

absl::StatusOr<float> JudgeScorer::ReadReward(absl::string_view body) const {
  SYNCOPATE_ASSIGN_OR_RETURN(const Judgement judgement, ParseJudgement(body));
  if (judgement.tokens < 0 && options_.needs_usage) {
    return Error(absl::StatusCode::kInvalidArgument, "NO_USAGE",
                 "the judge's endpoint does not say how many tokens it used (usage.total_tokens), which "
                 "reward.judge_tokens counts");
  }
  return FindReward(pattern_, judgement);
}

absl::Status JudgeScorer::Refuse(const std::string& what) const {
  const std::string key =
      options_.key_file.empty()
          ? std::string("reward.judge_key_file is not set; set it to a file with a key that may use ")
          : absl::StrCat("put a key into reward.judge_key_file ", options_.key_file,
                         ", which is read for each request, that may use ");
  return Error(absl::StatusCode::kPermissionDenied, kScorerRefused,
               absl::StrCat("the judge at reward.judge_url ", options_.url, " refuses this run: ", what, "; ", key,
                            "reward.judge_model ", options_.sampling.model));
}

void JudgeScorer::NoteEnd(const std::vector<HttpAnswer>& asked, absl::string_view body) {
  used_tokens_ += std::max<int64_t>(0, ParseUsedTokens(body));
  if (!KeepsJudgements()) return;
  const absl::StatusOr<float> reward = ReadReward(body);
  if (reward.ok()) Keep(asked.at(0).text, *reward);
}

void JudgeScorer::Score(RemoteItem item, Done done) {
  absl::StatusOr<std::vector<std::string>> prompts = prompt_.Render(item.row_json, item.texts);
  if (!prompts.ok()) {
    // If too many wait, the caller's timeout ends the item.
    (void)answers_.Post([done = std::move(done), why = prompts.status()] { done(why); });
    return;
  }
  Rewards rewards(prompts->size(), absl::UnknownError("not judged"));
  RemoteItem request{.id = item.id, .reward = "", .row_json = "", .texts = {}, .finishes = {}, .budget = item.budget};
  std::vector<std::vector<size_t>> askers;  // by text of the request: the answers that it is for
  {
    MutexLock lock(&mutex_);
    std::map<std::string, size_t> asked;  // from prompt to text of the request
    for (size_t i = 0; i < prompts->size(); ++i) {
      std::string& prompt = (*prompts)[i];
      if (KeepsJudgements()) {
        const auto known = kept_.find(prompt);
        if (known != kept_.end()) {
          rewards[i] = RemoteReward{.value = known->second};
          continue;
        }
        const auto [first, is_new] = asked.emplace(prompt, askers.size());
        if (!is_new) {
          askers[first->second].push_back(i);
          continue;
        }
      }
      askers.push_back({i});
      request.texts.push_back(std::move(prompt));
      request.finishes.push_back(item.finishes[i]);
    }
  }
  if (request.texts.empty()) {
    (void)answers_.Post([done = std::move(done), rewards = std::move(rewards)] { done(rewards); });
    return;
  }
  auto judged = [done = std::move(done), rewards = std::move(rewards),
                 askers = std::move(askers)](const absl::StatusOr<Rewards>& answered) mutable {
    if (!answered.ok()) return done(answered);
    for (size_t i = 0; i < askers.size(); ++i) {
      for (const size_t answer : askers[i]) rewards[answer] = (*answered)[i];
    }
    done(std::move(rewards));
  };
  http_->Score(std::move(request), std::move(judged));
}

void JudgeScorer::Keep(const std::string& prompt, float reward) {
  MutexLock lock(&mutex_);
  if (!kept_.emplace(prompt, reward).second) return;
  kept_order_.push_back(prompt);
  kept_bytes_ += static_cast<int64_t>(prompt.size());
  while (kept_bytes_ > options_.max_kept_bytes && !kept_order_.empty()) {
    kept_bytes_ -= static_cast<int64_t>(kept_order_.front().size());
    kept_.erase(kept_order_.front());
    kept_order_.pop_front();
  }
}

}  // namespace syncopate::rollouter
