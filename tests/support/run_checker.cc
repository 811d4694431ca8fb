#include "tests/support/run_checker.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/data/submission_check.h"

namespace syncopate::testing {
namespace {

using trainer::AcceptedRecord;
using trainer::DropRecord;
using trainer::SharedGroup;
using trainer::TakeRecord;

std::string Name(const LeaseId& lease) {
  return absl::StrCat("group ", lease.group.ToString(), " attempt ", lease.attempt);
}

int64_t CountTokens(const TrajectoryGroup& group) {
  int64_t tokens = 0;
  for (const Trajectory& sample : group.samples) tokens += WrittenTokens(sample);
  return tokens;
}

// Returns what is wrong with the sample; empty if it is whole.
std::string WhatIsMissing(const Trajectory& sample) {
  if (sample.tokens.empty()) return "has no tokens";
  if (sample.finish == FinishReason::kAborted) return "was aborted";
  if (sample.logprobs.size() != sample.tokens.size()) return "lacks log-probabilities";
  const bool good = std::all_of(sample.logprobs.begin(), sample.logprobs.end(),
                                [](float logprob) { return std::isfinite(logprob) && logprob <= 0; });
  if (!good) return "has a log-probability that is none";
  // Between spans lie given ranges alone.
  int32_t end = 0;
  auto given = sample.given.begin();
  for (const VersionSpan& span : sample.spans) {
    for (; given != sample.given.end() && given->begin == end && given->end > given->begin; ++given) end = given->end;
    if (span.begin != end || span.end <= span.begin) return "has version spans with gaps";
    end = span.end;
  }
  if (given != sample.given.end()) return "has given tokens within a span, or at its end";
  return end == static_cast<int32_t>(sample.tokens.size()) ? "" : "has tokens of unknown version";
}

// Reads the log record by record, then everything else.
class Check {
 public:
  Check(const RunHistory& history, const RunRules& rules) : history_(history), rules_(rules) {}

  RunFindings Run() {
    for (const trainer::LogRecord& record : history_.log) {
      std::visit([this](const auto& one) { On(one); }, record);
    }
    CheckQueued();
    CheckCheckpoints();
    CheckStepLines();
    CheckVersions();
    CheckSummary();
    return std::move(findings_);
  }

 private:
  enum class Fate { kQueued, kTaken, kDropped };
  struct Group {
    LeaseId lease;
    Fate fate = Fate::kQueued;
    int64_t step = 0;  // kTaken: the step that trained the group
    PolicyVersion admitted = {};
    SharedGroup answer = {};
  };
  struct Take {
    TakeRecord record;
    int64_t tokens = 0;
    int64_t staleness_max = 0;
  };

  void Violation(const char* invariant, const std::string& text) {
    findings_.violations.push_back(absl::StrCat(invariant, ": ", text));
  }
  bool pruned() const { return history_.first_record > 1; }
  // Records of steps that the newest checkpoint contains may have been pruned.
  bool MayBePruned(int64_t step) const {
    return pruned() && !history_.checkpoints.empty() && step <= history_.checkpoints.back().version.step;
  }

  void On(const AcceptedRecord& accepted) {
    const LeaseId& lease = accepted.group->lease;
    ++findings_.accepted;
    ++findings_.accepted_by_epoch[trainer::NewestVersion(*accepted.group).epoch];
    if (lease.attempt > 1) ++findings_.reissued;
    CheckWhole(*accepted.group);
    CheckAdmitted(accepted);
    auto found = groups_.find(lease.group);
    if (found != groups_.end()) CheckMayBeAccepted(found->second, lease);
    groups_[lease.group] = {lease, Fate::kQueued, 0, accepted.admitted, accepted.group};
  }

  void CheckMayBeAccepted(const Group& before, const LeaseId& lease) {
    if (before.fate == Fate::kTaken) {
      Violation("I2", absl::StrCat(Name(lease), " is accepted after step ", before.step, " had trained it"));
    } else if (before.fate == Fate::kQueued) {
      Violation("I1",
                absl::StrCat(Name(before.lease), " was accepted and silently replaced by attempt ", lease.attempt));
    } else if (lease.attempt <= before.lease.attempt) {
      Violation("I1", absl::StrCat(Name(lease), " is accepted after attempt ", before.lease.attempt, " was dropped"));
    }
  }

  // The attempt that answered the group does not matter: the gate admitted the group for the version of the first
  // attempt.
  void CheckAdmitted(const AcceptedRecord& accepted) {
    const PolicyVersion oldest = trainer::OldestVersion(*accepted.group);
    if (oldest.epoch != accepted.admitted.epoch || oldest >= accepted.admitted) return;
    Violation("I4", absl::StrCat(Name(accepted.group->lease), " holds a token of ", oldest.ToString(),
                                 ", but was admitted for ", accepted.admitted.ToString()));
  }

  void CheckWhole(const TrajectoryGroup& group) {
    if (static_cast<int64_t>(group.samples.size()) != rules_.samples) {
      Violation("I12",
                absl::StrCat(Name(group.lease), " has ", group.samples.size(), " of ", rules_.samples, " samples"));
    }
    if (group.prompt_ids.empty()) Violation("I12", absl::StrCat(Name(group.lease), " has no prompt"));
    for (size_t i = 0; i < group.samples.size(); ++i) {
      const std::string missing = WhatIsMissing(group.samples[i]);
      if (!missing.empty()) Violation("I12", absl::StrCat("sample ", i, " of ", Name(group.lease), " ", missing));
    }
  }

  void On(const TakeRecord& record) {
    const int64_t step = record.produces.step;
    if (auto before = takes_.find(step); before != takes_.end()) {
      // A take may be written again if the first write was not acknowledged in time.
      const TakeRecord& first = before->second.record;
      if (first.groups != record.groups || first.produces != record.produces) {
        Violation("I2", absl::StrFormat("step %d has two takes, of epochs %d and %d", step, first.produces.epoch,
                                        record.produces.epoch));
      }
      return;
    }
    const int64_t due = takes_.empty() ? (pruned() ? step : 1) : takes_.rbegin()->first + 1;
    if (step != due) Violation("I1", absl::StrCat("the log goes on with step ", step, " where step ", due, " is due"));
    if (!takes_.empty() && record.produces.epoch < takes_.rbegin()->second.record.produces.epoch) {
      Violation("I9", absl::StrCat("step ", step, " was taken by the older epoch ", record.produces.epoch));
    }
    const int64_t size = static_cast<int64_t>(record.groups.size());
    if (size != rules_.batch_groups && !(rules_.data_end && size < rules_.batch_groups && size > 0)) {
      Violation("I12", absl::StrCat("step ", step, " takes ", size, " groups instead of ", rules_.batch_groups));
    }
    Take take{record};
    for (const LeaseId& lease : record.groups) TakeGroup(lease, &take);
    takes_[step] = std::move(take);
    ++findings_.steps;
    epochs_.insert(record.produces.epoch);
    findings_.epochs = static_cast<int64_t>(epochs_.size());
  }

  void TakeGroup(const LeaseId& lease, Take* take) {
    const int64_t step = take->record.produces.step;
    auto found = groups_.find(lease.group);
    if (take->record.supervised) {
      // The answers of a supervised group come from the data and were never leased, so the log has only the take.
      if (found != groups_.end()) {
        Violation("I2", absl::StrCat(Name(lease), " is taught by step ", step, " and was already asked for or taught"));
      }
      groups_[lease.group] = {.lease = lease, .fate = Fate::kTaken, .step = step};
      ++findings_.trained;
      return;
    }
    if (found == groups_.end() || found->second.lease != lease) {
      if (!MayBePruned(step)) {
        Violation("I1", absl::StrCat("step ", step, " trains ", Name(lease), ", which was never accepted"));
      }
      return;
    }
    Group& group = found->second;
    if (group.fate == Fate::kTaken) {
      Violation("I2", absl::StrCat(Name(lease), " is trained by step ", group.step, " and by step ", step));
      return;
    }
    if (group.fate == Fate::kDropped) {
      Violation("I2", absl::StrCat(Name(lease), " is trained by step ", step, " after it was dropped"));
      return;
    }
    group.fate = Fate::kTaken;
    group.step = step;
    ++findings_.trained;
    // The tokens of such a group may be fresh all the same, if a second attempt made them.
    if (CheckStaleness(*group.answer, take) && !rules_.masks_beyond_bound &&
        step - 1 - group.admitted.step > rules_.max_staleness) {
      Violation("I4", absl::StrCat(Name(lease), " was admitted for ", group.admitted.ToString(),
                                   " and is trained too late, by step ", step));
    }
  }

  bool CheckStaleness(const TrajectoryGroup& group, Take* take) {
    const int64_t at = take->record.produces.step - 1;
    take->tokens += CountTokens(group);
    for (const Trajectory& sample : group.samples) {
      for (const VersionSpan& span : sample.spans) {
        const int64_t staleness = at - span.version.step;
        if (rules_.masks_beyond_bound && staleness > rules_.max_staleness) {
          take->tokens -= span.end - span.begin;
          continue;
        }
        take->staleness_max = std::max(take->staleness_max, staleness);
        if (staleness >= 0 && staleness <= rules_.max_staleness) continue;
        Violation("I4", absl::StrFormat("step %d trains tokens of %s in %s: staleness %d, bound %d", at + 1,
                                        span.version.ToString(), Name(group.lease), staleness, rules_.max_staleness));
        return false;  // one violation a group is enough
      }
    }
    return true;
  }

  void On(const DropRecord& drop) {
    auto found = groups_.find(drop.lease.group);
    const bool held = found != groups_.end() && found->second.fate == Fate::kQueued;
    if (!held) {
      // Groups without signal are dropped instead of accepted, and prompts that failed too often were never accepted.
      if (!trainer::LeasedAgain(drop.reason) && (found == groups_.end() || found->second.fate == Fate::kDropped)) {
        done_with_.insert(drop.lease.group);
        ++dropped_unaccepted_[drop.reason];
        groups_[drop.lease.group] = {drop.lease, Fate::kDropped};
      } else if (!pruned()) {
        Violation("I1", absl::StrCat(Name(drop.lease), " is dropped as ", trainer::DropReasonName(drop.reason),
                                     " but was not waiting to be trained"));
      }
      return;
    }
    ++findings_.dropped[trainer::DropReasonName(drop.reason)];
    found->second.fate = Fate::kDropped;
    if (!trainer::LeasedAgain(drop.reason)) done_with_.insert(drop.lease.group);
  }

  void CheckQueued() {
    const int64_t step = takes_.empty() ? 0 : takes_.rbegin()->first;
    for (const auto& [id, group] : groups_) {
      if (group.fate != Fate::kQueued) continue;
      ++findings_.queued;
      if (rules_.masks_beyond_bound || group.admitted.step + rules_.max_staleness >= step) continue;
      Violation("I1", absl::StrFormat("%s was accepted for %s and can not be trained any more at step %d, but nothing "
                                      "says that it was dropped",
                                      Name(group.lease), group.admitted.ToString(), step));
    }
  }

  // Checks that a checkpoint lists as consumed exactly the groups of the takes up to its step and those dropped for
  // good.
  void CheckCheckpoints() {
    if (!history_.damaged_checkpoints.empty()) {
      Violation("I10", absl::StrCat("a checkpoint does not verify: ", history_.damaged_checkpoints.back()));
    }
    if (pruned()) return;
    for (const RunHistory::Checkpoint& checkpoint : history_.checkpoints) CheckConsumed(checkpoint);
  }

  void CheckConsumed(const RunHistory::Checkpoint& checkpoint) {
    const trainer::DataState& data = checkpoint.data;
    auto consumed = [&data](const GroupId& id) {
      return id < data.consumed_below || std::binary_search(data.consumed_above.begin(), data.consumed_above.end(), id);
    };
    const std::string name = checkpoint.version.ToString();
    for (const auto& [id, group] : groups_) {
      const bool trained = group.fate == Fate::kTaken && group.step <= checkpoint.version.step;
      if (trained && !consumed(id)) {
        Violation("I2", absl::StrCat("checkpoint ", name, " does not know that step ", group.step, " trained ",
                                     Name(group.lease)));
      }
      if (!trained && consumed(id) && !done_with_.contains(id)) {
        Violation("I1",
                  absl::StrCat("checkpoint ", name, " counts ", Name(group.lease), " as done with, but it is not"));
      }
    }
    for (const GroupId& id : data.consumed_above) {
      if (!groups_.contains(id)) {
        Violation("I1", absl::StrCat("checkpoint ", name, " counts group ", id.ToString(),
                                     " as done with, which was never accepted"));
      }
    }
  }

  void CheckStepLines() {
    std::map<int64_t, const RunHistory::StepLine*> first;  // key: step
    std::set<PolicyVersion> seen;
    for (const RunHistory::StepLine& line : history_.steps) {
      auto take = takes_.find(line.version.step);
      if (take == takes_.end()) {
        if (!pruned())
          Violation("I15", absl::StrCat(line.version.ToString(), " is reported, but no take of it is logged"));
        continue;
      }
      const int64_t epoch = take->second.record.produces.epoch;
      if (line.version.epoch < epoch) {
        ++findings_.foreign_lines;
        continue;
      }
      CheckLine(line, take->second, seen.insert(line.version).second);
      const RunHistory::StepLine* original = first.emplace(line.version.step, &line).first->second;
      const bool comparable = !original->weights_digest.empty() && !line.weights_digest.empty();
      if (comparable && original->weights_digest != line.weights_digest) {
        Violation("I8",
                  absl::StrCat("step ", line.version.step, " gave weights ", original->weights_digest, " at first and ",
                               line.weights_digest, " when epoch ", line.version.epoch, " repeated it"));
      }
    }
    CheckNoneMissing(first);
  }

  void CheckLine(const RunHistory::StepLine& line, const Take& take, bool is_new) {
    const std::string name = line.version.ToString();
    const bool repeats = line.version.epoch > take.record.produces.epoch;
    if (!is_new) Violation("I2", absl::StrCat(name, " is reported twice by one epoch"));
    if (repeats && !line.is_replay) Violation("I2", absl::StrCat(name, " trains anew what an earlier epoch had taken"));
    if (!repeats && line.is_replay)
      Violation("I8", absl::StrCat(name, " claims to repeat a step that nobody had taken"));
    if (line.is_replay) ++findings_.replayed_lines;
    if (pruned() || take.record.supervised) return;
    if (line.tokens != take.tokens || line.staleness_max != take.staleness_max) {
      Violation("I15", absl::StrFormat("%s reports %d tokens of staleness up to %d; its groups have %d up to %d", name,
                                       line.tokens, line.staleness_max, take.tokens, take.staleness_max));
    }
  }

  void CheckNoneMissing(const std::map<int64_t, const RunHistory::StepLine*>& reported) {
    if (reported.empty() || history_.torn_lines > 0 || rules_.reports_may_be_lost) return;
    for (const auto& [step, take] : takes_) {
      if (step < reported.rbegin()->first && !reported.contains(step)) {
        Violation("I15", absl::StrCat("step ", step, " is missing in metrics.jsonl"));
      }
    }
  }

  void CheckVersions() {
    std::map<PolicyVersion, std::string> digests;
    for (const RunHistory::Served& one : history_.published) CheckDigest(one, &digests);
    std::map<std::string, PolicyVersion> serving;  // key: rollouter
    for (const RunHistory::Served& one : history_.installed) {
      PolicyVersion& before = serving[one.daemon];
      if (one.version < before) {
        Violation("I3",
                  absl::StrCat(one.daemon, " went back from ", before.ToString(), " to ", one.version.ToString()));
      }
      before = one.version;
      if (!one.digest.empty()) CheckDigest(one, &digests);
    }
  }

  void CheckDigest(const RunHistory::Served& one, std::map<PolicyVersion, std::string>* digests) {
    const std::string& known = digests->emplace(one.version, one.digest).first->second;
    if (known == one.digest) return;
    Violation("I5", absl::StrCat(one.daemon, " has ", one.version.ToString(), " with digest ", one.digest,
                                 ", another daemon with ", known));
  }

  void CheckSummary() {
    if (!history_.summary.has_value()) return;
    const RunHistory::Summary& summary = *history_.summary;
    if (summary.violations != 0) {
      Violation("I4", absl::StrCat("the trainer counted ", summary.violations, " violations of the staleness bound"));
    }
    const int64_t last = takes_.empty() ? 0 : takes_.rbegin()->first;
    if (summary.steps > last)
      Violation("I15", absl::StrCat("summary.json tells of ", summary.steps, " steps, the log of ", last));
    // The check concerns older incarnations only: a later one has made steps and was killed before it could write
    // another summary.
    if (summary.steps < last || pruned()) return;
    CheckAcknowledged(summary);
    int64_t tokens = 0;
    for (const auto& [step, take] : takes_) {
      if (take.record.supervised) return;  // the log does not contain the length of answers from the data
      tokens += take.tokens;
    }
    if (summary.trained != findings_.trained || summary.trained_tokens != tokens) {
      Violation("I15", absl::StrFormat("summary.json counts %d trained groups and their %d tokens, the log %d and %d",
                                       summary.trained, summary.trained_tokens, findings_.trained, tokens));
    }
  }

  void CheckAcknowledged(const RunHistory::Summary& summary) {
    // Groups without signal are acknowledged, too, although the log has only their drop.
    const int64_t accepted = findings_.accepted + dropped_unaccepted_[trainer::DropReason::kFiltered];
    // A later incarnation that made no step was killed, and had accepted groups.
    const bool later = !findings_.accepted_by_epoch.empty() && !epochs_.empty() &&
                       findings_.accepted_by_epoch.rbegin()->first > *epochs_.rbegin();
    if (later ? summary.acked > accepted : summary.acked != accepted) {
      Violation("I15",
                absl::StrFormat("summary.json counts %d acknowledged groups, the log %d", summary.acked, accepted));
    }
    const int64_t failed = dropped_unaccepted_[trainer::DropReason::kFailed];
    if (later ? summary.failed > failed : summary.failed != failed) {
      Violation("I15", absl::StrFormat("summary.json counts %d groups that were given up, the log %d", summary.failed,
                                       failed));
    }
  }

  const RunHistory& history_;
  const RunRules rules_;
  RunFindings findings_;
  std::map<GroupId, Group> groups_;                            // from the newest record of each group
  std::set<GroupId> done_with_;                                // groups dropped for good
  std::map<trainer::DropReason, int64_t> dropped_unaccepted_;  // drops without a record of the group's acceptance
  std::map<int64_t, Take> takes_;                              // key: the step that the take makes
  std::set<int64_t> epochs_;
};

}  // namespace

std::string RunFindings::ToString() const {
  std::string text = absl::StrFormat("%d groups accepted (%d reissued before): %d trained, %d queued", accepted,
                                     reissued, trained, queued);
  for (const auto& [reason, count] : dropped) absl::StrAppend(&text, ", ", count, " ", reason);
  absl::StrAppendFormat(&text, "; %d steps by %d epochs, %d repeated, %d lines of lost trainers; %d violations", steps,
                        epochs, replayed_lines, foreign_lines, violations.size());
  for (const std::string& violation : violations) absl::StrAppend(&text, "\n  ", violation);
  return text;
}

RunFindings CheckRun(const RunHistory& history, const RunRules& rules) { return Check(history, rules).Run(); }

std::map<int64_t, std::string> SurvivingDigests(const RunHistory& history) {
  std::map<int64_t, int64_t> epochs;  // epochs of the takes
  for (const trainer::LogRecord& record : history.log) {
    if (const auto* take = std::get_if<TakeRecord>(&record)) epochs.emplace(take->produces.step, take->produces.epoch);
  }
  std::map<int64_t, std::string> digests;
  for (const RunHistory::StepLine& line : history.steps) {
    auto epoch = epochs.find(line.version.step);
    if (epoch != epochs.end() && line.version.epoch >= epoch->second) digests[line.version.step] = line.weights_digest;
  }
  return digests;
}

}  // namespace syncopate::testing
