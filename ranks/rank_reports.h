#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace syncopate {

// The reports of a group's other ranks to rank 0, one for each rank and subject, until rank 0 takes them. Ranks report
// on several subjects in any order, for example on two checkpoints whose writing overlaps. Not thread-safe.
template <typename Report>
class RankReports {
 public:
  using OfRanks = std::map<int32_t, Report>;  // keyed by rank

  // A second report of the same rank on the same subject replaces the first.
  void Add(const std::string& subject, int32_t rank, Report report) {
    reports_[subject].insert_or_assign(rank, std::move(report));
  }
  // Whether `ranks` different ranks have reported.
  bool AllIn(const std::string& subject, int32_t ranks) const {
    const auto found = reports_.find(subject);
    return ranks == 0 || (found != reports_.end() && static_cast<int32_t>(found->second.size()) == ranks);
  }
  // What was reported so far; forgets it.
  OfRanks Take(const std::string& subject) {
    const auto found = reports_.find(subject);
    if (found == reports_.end()) return {};
    OfRanks taken = std::move(found->second);
    reports_.erase(found);
    return taken;
  }

 private:
  std::map<std::string, OfRanks> reports_;
};

}  // namespace syncopate
