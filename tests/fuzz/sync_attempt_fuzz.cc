// Runs a weight sync whose events come from the input: reports in any order, from any member, true or false; members
// that disappear; the passing of time. Commands are sent in the order of the protocol, each replica's part ends once,
// and the attempt ends in time.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "synchronizer/attempts/sync_attempt.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace syncopate;                // NOLINT: a program of its own
using namespace syncopate::synchronizer;  // NOLINT

// The bytes of the input as choices; 0 when no byte is left.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint32_t Below(uint32_t bound) {
    if (size_ == 0) return 0;
    --size_;
    return *data_++ % bound;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

constexpr int64_t kAttempt = 7;

SyncAttempt::Spec MakeSpec(Choices& choices) {
  SyncAttempt::Spec spec;
  spec.id = kAttempt;
  spec.rehearsal = choices.Below(4) == 0;
  spec.group_transport = choices.Below(2) == 0;
  spec.receivers_meet = choices.Below(2) == 0;
  if (!spec.rehearsal) spec.version = {.version = {1, 5}, .bucket_digests = {1, 2}, .digest = 3};
  spec.transport = "grpc";
  const uint32_t sources = 1 + choices.Below(2), replicas = 1 + choices.Below(3), ranks = 1 + choices.Below(2);
  for (uint32_t i = 0; i < sources; ++i) {
    spec.sources.push_back({kTrainerRole, "trainer-0", static_cast<int32_t>(i), static_cast<int32_t>(sources), "t"});
  }
  for (uint32_t r = 0; r < replicas; ++r) {
    SyncAttempt::Receiver& receiver = spec.receivers.emplace_back();
    receiver.replica_id = absl::StrCat("rollouter-", r);
    for (uint32_t i = 0; i < ranks; ++i) {
      receiver.ranks.push_back({kRollouterRole, receiver.replica_id, static_cast<int32_t>(i),
                                static_cast<int32_t>(ranks), absl::StrCat("r", r)});
    }
  }
  spec.begun = absl::UnixEpoch() + absl::Seconds(1000);
  spec.prepare_by = spec.begun + absl::Seconds(2);
  spec.deadline = spec.begun + absl::Seconds(20);
  return spec;
}

std::string GetName(const MemberId& member) {
  return absl::StrCat(member.role, "/", member.replica_id, "/", member.rank);
}

class World {
 public:
  explicit World(Choices choices) : choices_(choices), spec_(MakeSpec(choices_)), attempt_(spec_), now_(spec_.begun) {
    for (const MemberId& source : spec_.sources) members_.push_back(source);
    for (const auto& receiver : spec_.receivers) {
      open_.insert(receiver.replica_id);
      members_.insert(members_.end(), receiver.ranks.begin(), receiver.ranks.end());
    }
  }

  void Run() {
    Take(attempt_.Begin());
    while (!choices_.empty() && !attempt_.done()) Take(Next());
    // No further event comes: open parts must end when their time has come, and not before.
    for (int tries = 0; !attempt_.done(); ++tries) {
      if (tries > 4 || attempt_.NextDeadline() > spec_.deadline) std::abort();
      now_ = std::max(now_, attempt_.NextDeadline());
      Take(attempt_.Tick(now_));
    }
    if (!open_.empty()) std::abort();
  }

 private:
  AttemptOutput Next() {
    now_ += absl::Milliseconds(choices_.Below(256));
    const MemberId& member = members_[choices_.Below(static_cast<uint32_t>(members_.size()))];
    switch (choices_.Below(8)) {
      case 0:
        return member.role == kTrainerRole ? attempt_.EndSources("PEER_LOST", "gone", now_)
                                           : attempt_.EndReceiver(member.replica_id, "PEER_LOST", "gone", now_);
      case 1:
        return now_ >= attempt_.NextDeadline() ? attempt_.Tick(now_) : AttemptOutput();
      case 2:
        return spec_.rehearsal ? attempt_.GiveWay(now_ + absl::Seconds(1), now_) : AttemptOutput();
      case 3:
        return attempt_.OnReport(member, Report(choices_.Below(3) + 1), now_);
      default:
        // A report on the member's last command.
        return attempt_.OnReport(member, Report(stages_[GetName(member)]), now_);
    }
  }

  SyncReport Report(uint32_t stage) {
    SyncReport report;
    report.attempt = choices_.Below(16) == 0 ? kAttempt - 1 : kAttempt;
    report.stage = static_cast<SyncStage>(stage == 0 ? 1 : stage);
    static const char* const kReasons[] = {
        "", "", "", "", "DIGEST_MISMATCH", "SUPERSEDED", "VERSION_NOT_STAGED", "PEER_LOST"};
    const std::string reason = kReasons[choices_.Below(8)];
    if (!reason.empty()) report.status = Error(absl::StatusCode::kAborted, reason, "so it came");
    report.already_serves = choices_.Below(8) == 0;
    report.weights.base_present = choices_.Below(2) == 0;
    report.rendezvous = absl::StrCat("at-", choices_.Below(3));
    report.bytes = choices_.Below(100);
    return report;
  }

  void Take(const AttemptOutput& output) {
    for (const auto& [to, command] : output.sends) {
      const bool known = std::find(members_.begin(), members_.end(), to) != members_.end();
      if (!known || finished_.count(GetName(to)) > 0) std::abort();  // no command follows Finish
      uint32_t& stage = stages_[GetName(to)];
      uint32_t next = 0;
      if (std::holds_alternative<Prepare>(command)) next = 1;
      if (std::holds_alternative<Transfer>(command)) next = 2;
      if (std::holds_alternative<Install>(command)) next = 3;
      if (std::holds_alternative<Finish>(command)) {
        finished_.insert(GetName(to));
        continue;
      }
      // Transfer may be skipped for a rank that has the bits; a source and a rehearsal never install.
      if (next == 0 || next <= stage || (stage == 0 && next != 1)) std::abort();
      if (next == 3 && (to.role == kTrainerRole || spec_.rehearsal)) std::abort();
      stage = next;
    }
    for (const SyncRecord& record : output.ended) {
      if (open_.erase(record.replica_id) != 1 || record.attempt != kAttempt || record.result().empty()) std::abort();
      if (record.rehearsal() != spec_.rehearsal) std::abort();
    }
    if (attempt_.done() != open_.empty()) std::abort();
  }

  Choices choices_;
  const SyncAttempt::Spec spec_;
  SyncAttempt attempt_;
  absl::Time now_;
  std::vector<MemberId> members_;
  std::set<std::string> open_;              // replicas whose part has not ended
  std::map<std::string, uint32_t> stages_;  // key: member; value: the member's last command
  std::set<std::string> finished_;
};

}  // namespace

SYNCOPATE_FUZZ_TARGET(sync_attempt) {
  World(Choices(data, size)).Run();
  return 0;
}
