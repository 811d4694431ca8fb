#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/trajectory.h"

namespace syncopate::trainer {

// Keeps what rollouters have reported of answers that they have not finished, so that another rollouter continues them.
//
// Per group the kept tokens only grow, so each lease's start remains a prefix of what is kept. Of the attempts at
// a group only the last that began with `reports` may report: two attempts may draw different tokens at one place, as
// they may have different weights. A report that would exceed `most_bytes` is not kept, nor is any later one of that
// sample: a later lease begins where the kept tokens end.
//
// Plain state: no thread, clock or lock. Memory is bounded by `most_bytes` and the number of leased groups.
class PartialAnswers {
 public:
  // 0 bytes: nothing is kept, and every lease begins with no tokens.
  explicit PartialAnswers(int64_t most_bytes) : most_bytes_(most_bytes) {}
  virtual ~PartialAnswers() = default;

  // A lease of `samples` samples goes out. Returns what it begins with, one start a sample; empty if no sample has
  // tokens.
  std::vector<AnswerStart> BeginLease(const LeaseId& lease, int32_t samples, bool reports);
  // The rollouter that holds `lease` has made `part`. Changes nothing unless OK. RESOURCE_EXHAUSTED: there is no room
  // for it. FAILED_PRECONDITION: the lease does not report, or the part does not begin where the kept tokens end (it
  // was reported before, or one before it is missing). INVALID_ARGUMENT: it cannot be a part of an answer.
  absl::Status Add(const LeaseId& lease, const AnswerPart& part);
  // Whether the lease began with tokens, so that its answer is to be joined to them.
  bool HasStart(const LeaseId& lease) const;
  // Puts the start of the lease before what its rollouter made, whose places are those in the whole answer.
  // HasStart(lease) is true. Changes `answer` only if OK. INVALID_ARGUMENT (reason BAD_CONTINUATION): the answer does
  // not continue its start.
  absl::Status Join(TrajectoryGroup* answer) const;
  bool HasTokens(const GroupId& group) const;
  // The newest version among the kept tokens of a group; none without tokens. A rollouter that serves an older one
  // cannot continue them, as the versions of an answer never go back.
  PolicyVersion NewestVersion(const GroupId& group) const;
  int64_t CountTokens(const GroupId& group) const;
  void Forget(const GroupId& group);

  int64_t bytes() const { return bytes_; }

 protected:
  // Separate functions, so that a test can show that neither can be left out.
  virtual bool ContinuesKept(int32_t begin, int32_t kept) const { return begin == kept; }
  virtual bool NeedsPrefix(int32_t start) const { return start > 0; }

 private:
  struct Sample {
    std::vector<int32_t> tokens = {};
    std::vector<float> logprobs = {};
    std::vector<VersionSpan> spans = {};
    std::optional<FinishReason> finish = {};
  };
  struct Begun {
    int32_t tokens = 0;
    bool finished = false;
  };
  struct Entry {
    int32_t reporter = 0;  // the attempt whose parts are kept
    std::vector<Sample> samples = {};
    std::map<int32_t, std::vector<Begun>> starts = {};  // by attempt
  };

  static int64_t CountBytes(const Entry& entry);
  // Puts the first `start.tokens` kept tokens before those of `answer`.
  absl::Status JoinSample(const Sample& kept, const Begun& start, Trajectory* answer) const;

  const int64_t most_bytes_;
  int64_t bytes_ = 0;
  std::map<GroupId, Entry> groups_;
};

}  // namespace syncopate::trainer
