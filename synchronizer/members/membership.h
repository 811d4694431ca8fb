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

// The place a process fills. At most one incarnation holds it at a time.
struct MemberKey {
  std::string role;
  std::string replica_id;
  int32_t rank = 0;
  friend auto operator<=>(const MemberKey&, const MemberKey&) = default;
};

inline MemberKey KeyOf(const MemberId& id) { return {id.role, id.replica_id, id.rank}; }

enum class MemberState : uint8_t { kAlive, kSuspect, kDead, kLeft };

struct Member {
  Hello hello;  // as last said; `serving`, `serving_digest` and `held` are kept current by heartbeats
  MemberState state = MemberState::kAlive;
  SessionId session = 0;  // 0: its stream is broken, or it is gone
  absl::Time last_heard;
  absl::Time gone_since = absl::InfiniteFuture();
  std::string detail;  // why it is dead or left
  // What it says it serves although nobody has published it, and which therefore is not in `hello`. None: it says no
  // such thing.
  PolicyVersion unbacked;

  bool Reachable() const { return session != 0 && (state == MemberState::kAlive || state == MemberState::kSuspect); }
};

// Something that became true. The owner reacts; Membership itself tells nobody.
struct MemberChange {
  enum class Kind : uint8_t {
    kJoined,     // a new incarnation, or one that had been declared dead
    kRejoined,   // the same incarnation on a new stream
    kSuspected,  // silent for suspect_after
    kRecovered,  // heard again
    kDead,       // silent for dead_after, evicted, or replaced
    kLeft,
    kHeld,      // deaths are held back: more than half of the rollouters look dead at once
    kReleased,  // no longer held back
  };
  Kind kind;
  MemberKey key;         // empty for kHeld, kReleased
  SessionId closed = 0;  // this stream is to be closed, with `reason`
  std::string reason;    // DECLARED_DEAD, REPLACED, EVICTED, ...; "" when all is well
  std::string detail;
};

// Who is alive. Sans-IO and deterministic: time comes in, changes go out; no thread, lock, clock or network.
//
// A member is declared dead after `dead_after` of silence, whether or not its stream looks healthy: a stopped process
// keeps its sockets open. It may come back with the same incarnation. An incarnation that was evicted, or replaced by
// another process at the same place, is retired for ever (in fact: until thousands came after it).
//
// Who is dead or has left stays listed for a minute, if not more than kGoneKept went after it.
//
// Two guards against false positives. When a rollouter is due to be declared dead while more than half of at least
// `hold_from` rollouters are suspect, the network is suspected: none of them is declared dead for at most `max_hold`.
// And when this process itself was away for longer than suspect_after (it was stopped, or starved), that time is not
// held against the members.
class Membership {
 public:
  struct Options {
    absl::Duration heartbeat = absl::Seconds(1);
    absl::Duration suspect_after = absl::Seconds(3);
    absl::Duration dead_after = absl::Seconds(5);
    int hold_from = 4;  // rollouters
    absl::Duration max_hold = absl::Seconds(30);
    absl::Status Validate() const;  // INVALID_ARGUMENT unless 0 < heartbeat < suspect_after < dead_after
  };

  explicit Membership(const Options& options) : options_(options) {}

  // FAILED_PRECONDITION reason REPLACED or EVICTED if this incarnation is retired; INVALID_ARGUMENT reason BAD_MEMBER
  // if CheckMember refuses its name. Changes nothing.
  absl::Status CheckMayJoin(const MemberId& id) const;

  // `hello.member` has passed CheckMayJoin. A different incarnation at its place is retired. Never fails.
  std::vector<MemberChange> Join(SessionId session, Hello hello, absl::Time now);
  // Any message on a stream. Streams that are not (any more) a member's are ignored, here and below.
  std::vector<MemberChange> Heard(SessionId session, absl::Time now);
  // The stream broke. Not a death: the silence decides.
  void Disconnected(SessionId session, absl::Time now);
  std::vector<MemberChange> Leave(SessionId session, const std::string& reason, absl::Time now);
  // Declares the member dead and retires its incarnation. NOT_FOUND reason UNKNOWN_MEMBER.
  absl::StatusOr<std::vector<MemberChange>> Evict(const MemberKey& key, const std::string& reason,
                                                  const std::string& detail, absl::Time now);
  void SetServing(SessionId session, PolicyVersion serving, uint64_t digest);
  void SetHeld(SessionId session, const std::string& why);
  void SetUnbacked(SessionId session, PolicyVersion claimed);  // until the next SetServing

  // Nobody was listened to until `now`: every member's silence begins then.
  void BeginAnew(absl::Time now);

  // Call when NextDeadline() has come; calling earlier or later is harmless.
  std::vector<MemberChange> Tick(absl::Time now);
  // When something may have to be said or forgotten, or before: being heard of puts off a deadline and does not move
  // this, so that a thousand members do not look at each other with every heartbeat. InfiniteFuture when nobody is
  // listed.
  absl::Time NextDeadline() const;

  const Member* Find(SessionId session) const;  // null if the stream is not a member's
  const Member* Find(const MemberKey& key) const;
  const std::map<MemberKey, Member>& members() const { return members_; }  // some gone ones too
  const Options& options() const { return options_; }
  bool holding() const { return held_since_ != absl::InfiniteFuture(); }

 private:
  static constexpr size_t kGoneKept = 64;                       // dead or left members kept for listing
  static constexpr absl::Duration kGoneFor = absl::Minutes(1);  // and how long
  static constexpr size_t kRetiredKept = 4096;                  // incarnations
  static constexpr size_t kForgottenKept = 4096;                // places

  Member* FindMutable(SessionId session);
  void Retire(const MemberId& id, const std::string& reason);
  MemberChange End(const MemberKey& key, Member& member, MemberChange::Kind kind, const std::string& reason,
                   const std::string& detail, absl::Time now);
  void ForgiveOwnAbsence(absl::Time now);
  std::vector<MemberChange> UpdateHold(absl::Time now);
  std::vector<MemberChange> EndHold(const std::string& detail);
  void ForgetGone(absl::Time now);
  void Forget(std::map<MemberKey, Member>::iterator member);
  absl::Time EarliestDeadline() const;

  Options options_;
  std::map<MemberKey, Member> members_;
  std::map<SessionId, MemberKey> sessions_;
  std::map<MemberId, std::string> retired_;  // and the reason
  std::deque<MemberId> retired_order_;       // the oldest first
  // Who had a place when it was forgotten: whoever comes to it next retires that one, as if it were still listed.
  std::map<MemberKey, MemberId> forgotten_;
  absl::Time last_call_ = absl::InfinitePast();
  mutable std::optional<absl::Time> next_deadline_;  // none: who is there, or how, has changed since it was asked for
  absl::Time held_since_ = absl::InfiniteFuture();   // InfiniteFuture: not holding
  bool hold_spent_ = false;                          // this wave was held for max_hold already
};

}  // namespace syncopate::synchronizer
