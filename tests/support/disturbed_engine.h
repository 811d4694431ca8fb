#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rollouter/engine/engine.h"
#include "tests/support/dice.h"

// Sends many requests through an engine during installs, aborts and preemptions, and compares them with undisturbed
// runs.
namespace syncopate::testing {

// Records the tokens that arrive, and checks that each token carries the version that serves.
class AnswerSink final : public rollouter::GenerationSink {
 public:
  explicit AnswerSink(const rollouter::Engine* engine) : engine_(engine) {}
  bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
               const std::vector<TokenLogProb>& top) override {
    EXPECT_EQ(version, engine_->policy().version());
    begun.insert(sample);
    return true;
  }
  void OnFinished(int32_t sample, Trajectory trajectory) override {
    EXPECT_TRUE(answers.emplace(sample, std::move(trajectory)).second) << "ended twice";
  }
  std::map<int32_t, Trajectory> answers;   // key: sample
  std::set<int32_t> begun;                 // samples that have at least one token
  std::set<PolicyVersion> waited_through;  // versions installed while a sample had no token

 private:
  const rollouter::Engine* const engine_;
};

// An engine with the means to install weights number 0, 1, ... as some version.
struct TriedEngine {
  rollouter::Engine* engine = nullptr;
  std::function<void(const PolicyVersion&, int64_t weights)> install;
};

// Prompts of all lengths up to half of the context, a third of which begin like another prompt; every kind of sampling;
// answers that end at a stop token, at their length limit or with the context.
inline std::vector<rollouter::GenerationRequest> MixedRequests(const model::ModelConfig& config, int64_t max_context,
                                                               int count, uint64_t seed) {
  Dice dice(seed);
  std::vector<rollouter::GenerationRequest> requests;
  for (int i = 0; i < count; ++i) {
    rollouter::GenerationRequest& request = requests.emplace_back();
    request.id = absl::StrCat("request-", i);
    if (i > 0 && dice.Between(0, 2) == 0) {
      const std::vector<int32_t>& other =
          requests[static_cast<size_t>(dice.Between(std::max(0, i - 10), i - 1))].prompt_ids;
      request.prompt_ids.assign(other.begin(), other.begin() + dice.Between(0, static_cast<int64_t>(other.size())));
    }
    const size_t length = static_cast<size_t>(dice.Between(1, max_context / 2));
    while (request.prompt_ids.size() < length) {
      request.prompt_ids.push_back(static_cast<int32_t>(dice.Between(0, config.vocab_size - 1)));
    }
    SamplingParams& sampling = request.sampling;
    sampling.max_new_tokens = static_cast<int32_t>(dice.Between(1, max_context * 2 / 3));
    if (i % 2 == 0) sampling.stop_token_ids = {static_cast<int32_t>(dice.Between(0, config.vocab_size - 1))};
    const int64_t kind = dice.Between(0, 5);
    if (kind == 0) sampling.temperature = 0;
    if (kind == 1) sampling.top_p = 0.8f, sampling.temperature = 0.7f;
    if (kind == 2) sampling.frequency_penalty = 0.5f;
    const int64_t samples = dice.Between(0, 2) == 0 ? dice.Between(2, 4) : 1;
    for (int64_t s = 0; s < samples; ++s) {
      request.seeds.push_back(SampleSeed(seed + static_cast<uint64_t>(i), static_cast<int32_t>(s)));
    }
  }
  return requests;
}

using Sinks = std::vector<std::shared_ptr<AnswerSink>>;

inline std::shared_ptr<AnswerSink> AddTo(const TriedEngine& tried, const rollouter::GenerationRequest& request) {
  auto sink = std::make_shared<AnswerSink>(tried.engine);
  EXPECT_TRUE(tried.engine->CheckShape(request).ok()) << tried.engine->CheckShape(request);
  tried.engine->Add(request, sink);
  return sink;
}

// Runs all requests at once with the weights number `weights`, undisturbed, to their end.
inline Sinks RunCalmly(const TriedEngine& tried, const std::vector<rollouter::GenerationRequest>& requests,
                       int64_t weights) {
  tried.install({1, weights}, weights);
  Sinks sinks;
  for (const rollouter::GenerationRequest& request : requests) sinks.push_back(AddTo(tried, request));
  while (tried.engine->HasWork()) {
    const absl::Status stepped = tried.engine->Step();
    EXPECT_TRUE(stepped.ok()) << stepped;
    if (!stepped.ok()) break;
  }
  return sinks;
}

struct DisturbedRun {
  Sinks sinks;
  std::set<size_t> aborted;
  int64_t installs = 0;
};

// A few requests arrive at every step. Every `install_every` steps the next of `weight_sets` sets of weights is
// installed, in turn. Now and then a request is aborted.
inline DisturbedRun RunDisturbed(const TriedEngine& tried, const std::vector<rollouter::GenerationRequest>& requests,
                                 int64_t weight_sets, int64_t install_every, uint64_t seed) {
  Dice dice(seed);
  DisturbedRun run;
  rollouter::Engine& engine = *tried.engine;
  tried.install({1, 0}, 0);
  for (int64_t step = 1; run.sinks.size() < requests.size() || engine.HasWork(); ++step) {
    for (int64_t i = dice.Between(0, 3); i > 0 && run.sinks.size() < requests.size(); --i) {
      if (engine.waiting_sequences() < 40) run.sinks.push_back(AddTo(tried, requests[run.sinks.size()]));
    }
    if (dice.Between(0, 30) == 0 && !run.sinks.empty()) {
      const int64_t last = static_cast<int64_t>(run.sinks.size()) - 1;
      const size_t which = static_cast<size_t>(dice.Between(std::max<int64_t>(0, last - 60), last));
      if (engine.Abort(requests[which].id) > 0) run.aborted.insert(which);
    }
    if (step % install_every == 0) {
      ++run.installs;
      tried.install({1, run.installs}, run.installs % weight_sets);
      for (size_t i = 0; i < run.sinks.size(); ++i) {
        if (run.sinks[i]->begun.size() < requests[i].seeds.size())
          run.sinks[i]->waited_through.insert({1, run.installs});
      }
    }
    if (!engine.HasWork()) continue;
    const absl::Status stepped = engine.Step();
    EXPECT_TRUE(stepped.ok()) << stepped;
    if (!stepped.ok()) break;
  }
  return run;
}

// Compares the answers of a disturbed run with those of the undisturbed runs (one run for each set of weights). Only
// the tokens before a sequence's first install are compared; if no install came, these are all tokens.
struct Agreement {
  int64_t whole = 0;   // answers of one version
  int64_t parts = 0;   // answers of several versions, of which the tokens of the first version are compared
  int64_t differ = 0;  // of `whole` and `parts`: those that are not bit-identical to the undisturbed run
  // Of `differ`, the requests where an install came before the first token, so that keys and values of the prompt may
  // be of two versions
  std::set<size_t> requests_between_versions;
  std::string example;  // describes one of the answers that differ
};

inline Agreement CompareWithCalm(const DisturbedRun& run, const std::vector<Sinks>& calm) {
  Agreement agreement;
  for (size_t i = 0; i < run.sinks.size(); ++i) {
    for (const auto& [sample, answer] : run.sinks[i]->answers) {
      if (answer.spans.empty()) continue;  // the request was aborted before its first token
      const PolicyVersion& version = answer.spans[0].version;
      const size_t end = static_cast<size_t>(answer.spans[0].end);
      const Trajectory& expected = calm[static_cast<size_t>(version.step) % calm.size()][i]->answers.at(sample);
      const bool whole = end == answer.tokens.size() && run.aborted.count(i) == 0;
      ++(whole ? agreement.whole : agreement.parts);
      auto begins_alike = [end](const auto& a, const auto& b) {
        return b.size() >= end && std::equal(a.begin(), a.begin() + static_cast<int64_t>(end), b.begin());
      };
      const bool alike =
          begins_alike(answer.tokens, expected.tokens) && begins_alike(answer.logprobs, expected.logprobs) &&
          (!whole || (answer.tokens.size() == expected.tokens.size() && answer.finish == expected.finish));
      if (alike) continue;
      if (run.sinks[i]->waited_through.count(version) > 0) {
        agreement.requests_between_versions.insert(i);
      } else if (agreement.differ++ == 0) {
        agreement.example = absl::StrCat("request ", i, ", sample ", sample);
      }
    }
  }
  return agreement;
}

}  // namespace syncopate::testing
