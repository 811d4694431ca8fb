#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "base/trajectory.h"

namespace syncopate::trainer {

// The work of each rollouter process that ever took prompts, as it last reported it. The newest kListed processes are
// kept one by one, older ones as a sum. Plain state, no lock; no report of a peer can make it grow or overflow.
class RolloutRoster {
 public:
  static constexpr size_t kListed = 256;

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
  };

  // A process asks for prompts, for the first time or again.
  void AddProcess(const MemberId& member);
  void SetServing(const std::string& incarnation, const PolicyVersion& version);
  // Replaces what it said before. Figures that no process can have are ignored.
  void SetWork(const std::string& incarnation, const Work& work);

  // One that goes on from what another was when it was written down.
  static RolloutRoster Restore(std::deque<Entry> entries, const Work& earlier);

  const std::deque<Entry>& entries() const { return entries_; }  // in order of their first connection
  const Work& earlier() const { return earlier_; }               // of processes that are listed no more
  Work Total() const;                                            // of all that ever were

 private:
  Entry* Find(const std::string& incarnation);

  std::deque<Entry> entries_;
  Work earlier_;
};

}  // namespace syncopate::trainer
