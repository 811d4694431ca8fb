#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// The place of one process. At most one incarnation has it at a time.
struct MemberKey {
  std::string role;
  std::string replica_id;
  int32_t rank = 0;
  friend auto operator<=>(const MemberKey&, const MemberKey&) = default;
};

inline MemberKey GetKey(const MemberId& id) { return {id.role, id.replica_id, id.rank}; }

enum class MemberState : uint8_t { kAlive, kSuspect, kDead, kLeft };

struct Member {
  Hello hello;  // the latest; heartbeats update `serving`, `serving_digest`, `held` and `base_digest`
  MemberState state = MemberState::kAlive;
  SessionId session = 0;  // 0: its stream is broken, or the member is gone
  absl::Time last_heard;
  absl::Time gone_since = absl::InfiniteFuture();
  std::string detail;  // why it is dead or left
  // A version that the member claims to serve although no trainer has published it; therefore it is not in `hello`.
  // None: there is no such claim.
  PolicyVersion unbacked;

  bool Reachable() const { return session != 0 && (state == MemberState::kAlive || state == MemberState::kSuspect); }
};

// A change of a member's state. The owner reacts to it; Membership itself informs no one.
struct MemberChange {
  enum class Kind : uint8_t {
    kJoined,     // a new incarnation, or one that had been declared dead
    kRejoined,   // the same incarnation on a new stream
    kSuspected,  // silent for suspect_after
    kRecovered,  // a message arrived again
    kDead,       // silent for dead_after, evicted, or replaced
    kLeft,
    kDeathsPostponed,  // deaths are postponed: more than half of the rollouters look dead at once
    kDeathsResumed,    // deaths are no longer postponed
  };
  Kind kind;
  MemberKey key;         // empty for kDeathsPostponed, kDeathsResumed
  SessionId closed = 0;  // the stream to close, with `reason`
  std::string reason;    // DECLARED_DEAD, REPLACED, EVICTED, ...; "" if there is no failure
  std::string detail;
};

// Decides which members are alive. Sans-IO and deterministic: the time comes in, changes go out; no thread, lock, clock
// or network.
//
// A member is declared dead after `dead_after` of silence, even if its stream looks healthy: a stopped process keeps
// its sockets open. The same incarnation may come back. An incarnation that was evicted, or replaced by another process
// at the same place, is retired forever (in fact: until kRetiredKept others were retired after it).
//
// A member that is dead or has left stays listed for a minute, unless more than kGoneKept others went after it.
//
// Two guards prevent false positives. If a rollouter is due to be declared dead while more than half of at least
// `postpone_from` rollouters are silent, the network is suspected: no rollouter is declared dead for at most
// `max_postponement`. If this process itself did not run for longer than suspect_after (it was stopped, or starved),
// that time does not count as silence of the members.
class Membership {
 public:
  struct Options {
    absl::Duration heartbeat = absl::Seconds(1);
    absl::Duration suspect_after = absl::Seconds(3);
    absl::Duration dead_after = absl::Seconds(5);
    int postpone_from = 4;  // number of rollouters
    absl::Duration max_postponement = absl::Seconds(30);
    absl::Status Validate() const;  // INVALID_ARGUMENT unless 0 < heartbeat < suspect_after < dead_after
  };

  explicit Membership(const Options& options) : options_(options) {}

  // FAILED_PRECONDITION reason REPLACED or EVICTED if this incarnation is retired; INVALID_ARGUMENT reason BAD_MEMBER
  // if CheckMember refuses its name. Changes nothing.
  absl::Status CheckMayJoin(const MemberId& id) const;

  // Requires that CheckMayJoin accepts `hello.member`. A different incarnation at its place is retired. Never fails.
  std::vector<MemberChange> Join(SessionId session, Hello hello, absl::Time now);
  // Call for any message on a stream. A stream that is not (or no longer) a member's is ignored, here and below.
  std::vector<MemberChange> Heard(SessionId session, absl::Time now);
  // Call when the stream breaks. That is no death: only silence decides.
  void Disconnected(SessionId session, absl::Time now);
  std::vector<MemberChange> Leave(SessionId session, const std::string& reason, absl::Time now);
  // Declares the member dead and retires its incarnation. NOT_FOUND reason UNKNOWN_MEMBER.
  absl::StatusOr<std::vector<MemberChange>> Evict(const MemberKey& key, const std::string& reason,
                                                  const std::string& detail, absl::Time now);
  void SetServing(SessionId session, PolicyVersion serving, uint64_t digest);
  void SetHeld(SessionId session, const std::string& why);
  void SetBase(SessionId session, uint64_t base_digest);
  void SetUnbacked(SessionId session, PolicyVersion claimed);  // until the next SetServing

  // Call when no messages were read until `now`: every member's silence begins then.
  void BeginAnew(absl::Time now);

  // Call when NextDeadline() has come; calling earlier or later is harmless.
  std::vector<MemberChange> Tick(absl::Time now);
  // When a member's state may have to change or a member be forgotten; may be too early, never too late. A message from
  // a member postpones its deadline without changing this value, so that a heartbeat does not cost a search over all
  // members. InfiniteFuture if no member is listed.
  absl::Time NextDeadline() const;

  const Member* Find(SessionId session) const;  // null if the stream is not a member's
  const Member* Find(const MemberKey& key) const;
  const std::map<MemberKey, Member>& members() const { return members_; }  // some gone members too
  const Options& options() const { return options_; }
  bool postpones_deaths() const { return postponed_since_ != absl::InfiniteFuture(); }

 private:
  static constexpr size_t kGoneKept = 64;                       // dead or left members kept for listing
  static constexpr absl::Duration kGoneFor = absl::Minutes(1);  // how long they are kept
  static constexpr size_t kRetiredKept = 4096;                  // number of incarnations
  static constexpr size_t kForgottenKept = 4096;                // number of places

  Member* FindMutable(SessionId session);
  void Retire(const MemberId& id, const std::string& reason);
  MemberChange End(const MemberKey& key, Member& member, MemberChange::Kind kind, const std::string& reason,
                   const std::string& detail, absl::Time now);
  void ForgiveOwnAbsence(absl::Time now);
  std::vector<MemberChange> UpdatePostponement(absl::Time now);
  std::vector<MemberChange> EndPostponement(const std::string& detail);
  void ForgetGone(absl::Time now);
  void Forget(std::map<MemberKey, Member>::iterator member);
  absl::Time EarliestDeadline() const;

  Options options_;
  std::map<MemberKey, Member> members_;
  std::map<SessionId, MemberKey> sessions_;
  std::map<MemberId, std::string> retired_;  // with the reason
  std::deque<MemberId> retired_order_;       // the oldest first
  // The last process of each forgotten place. The next process there retires it, as if it were still listed.
  std::map<MemberKey, MemberId> forgotten_;
  absl::Time last_call_ = absl::InfinitePast();
  mutable std::optional<absl::Time> next_deadline_;      // none: to be computed again
  absl::Time postponed_since_ = absl::InfiniteFuture();  // InfiniteFuture: not postponed
  bool was_postponed_ = false;  // deaths of this wave were postponed for max_postponement already
};

}  // namespace syncopate::synchronizer
