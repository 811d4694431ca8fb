#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "base/trajectory.h"

namespace syncopate::trainer {

// The work of each rollouter process that ever took prompts, as it last reported it. Processes that are connected are kept
// one by one, and with them those that left last, kListed together; the work of the others is kept as a sum. One of
// these that connects again is taken out of the sum, if it is among the last kRemembered that went into it. Plain state,
// no lock; no report of a peer can make it overflow, and nothing but open connections makes it grow.
class RolloutRoster {
 public:
  static constexpr size_t kListed = 256;
  static constexpr size_t kRemembered = 1024;

  // Since the process started.
  struct Work {
    int64_t generated_tokens = 0;
    int64_t groups_submitted = 0;
    double busy_seconds = 0;
    double idle_seconds = 0;
    int64_t judge_tokens = 0;  // that the model which judges answers has used
  };
  struct Entry {
    MemberId member = {};
    PolicyVersion serving = {};  // as it said last
    Work work = {};
    int64_t left = 0;  // 0: it is connected; else when it left, by the number of departures until then
  };

  // A process asks for prompts, for the first time or again. It takes the place of the replica's process before it.
  void AddProcess(const MemberId& member);
  // The process is not connected any more; it may come back.
  void RemoveProcess(const std::string& incarnation);
  void SetServing(const std::string& incarnation, const PolicyVersion& version);
  // Replaces what it said before. Figures that no process can have are ignored.
  void SetWork(const std::string& incarnation, const Work& work);

  // One that goes on from what another was when it was written down; none of its processes is connected yet.
  static RolloutRoster Restore(std::deque<Entry> entries, const Work& earlier);

  const std::deque<Entry>& entries() const { return entries_; }  // in order of their first connection
  const Work& earlier() const { return earlier_; }               // the sum of processes that are not listed
  Work Total() const;                                            // of all that ever were

 private:
  Entry* Find(const std::string& incarnation);
  void SumUpOldest();

  std::deque<Entry> entries_;
  Work earlier_;
  std::deque<Entry> summed_;  // that went into the sum, oldest first
  int64_t departures_ = 0;
};

}  // namespace syncopate::trainer
