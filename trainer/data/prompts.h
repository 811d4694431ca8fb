#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/trajectory.h"

namespace syncopate::trainer {

struct Prompt {
  // The data file's path, the row's data_source if it has one, as short as a name, and the environment that it is played
  // in; none for built-in tasks.
  struct Origin {
    std::string file;
    std::string data_source;
    std::string environment = {};
  };
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> answer_ids;  // what the reward compares with; may be empty
  Task task = {};                   // what else it is judged by; none for built-in tasks
  // What supervised steps teach, its end token included. Empty: answer_ids.
  std::vector<int32_t> response_ids = {};
  std::vector<TokenRange> response_given = {};  // of response_ids what is read and not taught, as Trajectory::given
  Origin origin = {};
};

// A source of prompts. The prompt is a pure function of the group: the same after any restart and in any order of
// calls. When the prompt is ready is not: a source may have to read it first. Thread-safe; nothing
// blocks but Await.
class PromptSource {
 public:
  // The pass of evaluation prompts; training counts passes from 0.
  static constexpr int64_t kEvaluationPass = -1;

  // Whether a group's prompt can be had.
  enum class Readiness : uint8_t {
    kReady,     // At() has it
    kComing,    // it is being read, now that it was asked for, or the source has failed
    kUnusable,  // its row is no prompt and never will be: the group is to be skipped
  };

  virtual ~PromptSource() = default;

  virtual Readiness CheckReadiness(const GroupId& group) const;
  // CheckReadiness(group), as soon as that is not kComing; kComing if the source has failed, or fails as reading takes
  // minutes. Blocks.
  virtual Readiness Await(const GroupId& group) const { return CheckReadiness(group); }
  // CheckReadiness(group) was kReady, and At(group) has not been called since: what was given is forgotten, and read
  // again if it is asked for again.
  virtual Prompt At(const GroupId& group) const = 0;
  // Why no further prompt will come; OK as long as they do. Never OK again after an error.
  virtual absl::Status failure() const { return absl::OkStatus(); }
  // Calls `listener` after a group that CheckReadiness called kComing is not any more, and after a failure; from a
  // thread of the source's. Replaces the listener before; none is called any more when this returns. Not from the
  // listener.
  virtual void SetListener(std::function<void()> listener);

  // Ids as a person reads them; ids outside the vocabulary show as "?".
  virtual std::string Render(const std::vector<int32_t>& ids) const = 0;
  // Renders `ids` without special tokens, such as the one that ends an answer.
  virtual std::string RenderPlain(const std::vector<int32_t>& ids) const { return Render(ids); }

  virtual int64_t prompts_per_pass() const = 0;  // 0: endless, there is one pass
  virtual int32_t vocab_size() const = 0;        // ids are in [0, vocab_size)
  virtual std::vector<int32_t> stop_token_ids() const = 0;
  virtual int64_t max_prompt_tokens() const = 0;
  virtual int64_t max_answer_tokens() const = 0;  // of a right answer, its stop token included; 0: unknown
};

// What a supervised step trains: the prompt with its one answer, which no policy has drawn.
inline TrajectoryGroup SupervisedGroup(const LeaseId& lease, Prompt prompt) {
  TrajectoryGroup group;
  group.lease = lease;
  group.prompt_ids = std::move(prompt.prompt_ids);
  Trajectory& answer = group.samples.emplace_back();
  answer.tokens = std::move(prompt.response_ids.empty() ? prompt.answer_ids : prompt.response_ids);
  answer.given = std::move(prompt.response_given);
  return group;
}

inline PromptSource::Readiness PromptSource::CheckReadiness(const GroupId&) const { return Readiness::kReady; }
inline void PromptSource::SetListener(std::function<void()>) {}

}  // namespace syncopate::trainer
