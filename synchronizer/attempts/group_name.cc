#include "synchronizer/attempts/group_name.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"

namespace syncopate::synchronizer {

std::string GroupName(const std::vector<MemberId>& sources, const std::vector<MemberId>& receivers) {
  uint64_t hash = HashCombine(sources.size(), receivers.size());
  for (const std::vector<MemberId>* side : {&sources, &receivers}) {
    for (const MemberId& id : *side) {
      const std::string place = absl::StrCat(id.role, "/", id.replica_id, "/", id.rank, "/", id.incarnation);
      hash = HashCombine(hash, DigestBytes(place.data(), static_cast<int64_t>(place.size())));
    }
  }
  return absl::StrFormat("%016x", hash);
}

}  // namespace syncopate::synchronizer
