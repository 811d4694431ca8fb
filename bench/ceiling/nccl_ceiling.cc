#include "bench/ceiling/nccl_ceiling.h"

#include <nccl.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::bench {
namespace {

absl::Status Nccl(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, "NCCL_ERROR", absl::StrCat(what, ": ", ncclGetErrorString(result)));
}

// One communicator over several devices of this process: one rank, buffer and stream for each.
class Group {
 public:
  static absl::StatusOr<Group> Create(const std::vector<int>& devices, const std::vector<int64_t>& bytes) {
    Group group;
    for (size_t i = 0; i < devices.size(); ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(auto buffer, GpuBuffer::Create(devices[i], bytes[i]));
      SYNCOPATE_ASSIGN_OR_RETURN(auto stream, GpuStream::Create(devices[i]));
      group.buffers_.push_back(std::move(buffer));
      group.streams_.push_back(std::move(stream));
    }
    group.comms_.assign(devices.size(), nullptr);
    SYNCOPATE_RETURN_IF_ERROR(
        Nccl(ncclCommInitAll(group.comms_.data(), static_cast<int>(devices.size()), devices.data()), "a communicator"));
    return group;
  }
  Group(Group&& other) noexcept = default;
  ~Group() {
    for (ncclComm_t comm : comms_) {
      if (comm != nullptr) ncclCommDestroy(comm);
    }
  }

  ncclComm_t comm(size_t rank) const { return comms_[rank]; }
  char* data(size_t rank) const { return buffers_[rank].data(); }
  const std::vector<GpuStream>& streams() const { return streams_; }
  cudaStream_t stream(size_t rank) const { return streams_[rank].get(); }

 private:
  Group() = default;
  std::vector<GpuBuffer> buffers_;
  std::vector<GpuStream> streams_;
  std::vector<ncclComm_t> comms_;
};

}  // namespace

absl::StatusOr<double> GroupedNcclSeconds(const CeilingCase& ceiling_case) {
  const size_t sources = ceiling_case.sources.size();
  std::vector<int> devices = ceiling_case.sources;
  devices.insert(devices.end(), ceiling_case.receivers.begin(), ceiling_case.receivers.end());
  std::vector<int64_t> bytes(sources, ceiling_case.part() * ceiling_case.slices());
  bytes.insert(bytes.end(), ceiling_case.receivers.size(), ceiling_case.bytes);
  SYNCOPATE_ASSIGN_OR_RETURN(Group group, Group::Create(devices, bytes));
  const int64_t part = ceiling_case.part();
  auto run = [&]() -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(Nccl(ncclGroupStart(), "a group"));
    for (size_t source = 0; source < sources; ++source) {
      for (size_t receiver = 0; receiver < ceiling_case.receivers.size(); ++receiver) {
        const int64_t slice = static_cast<int64_t>(receiver) % ceiling_case.slices();
        const size_t rank = sources + receiver;
        SYNCOPATE_RETURN_IF_ERROR(Nccl(ncclSend(group.data(source) + slice * part, part, ncclInt8,
                                                static_cast<int>(rank), group.comm(source), group.stream(source)),
                                       "sending"));
        SYNCOPATE_RETURN_IF_ERROR(Nccl(ncclRecv(group.data(rank) + source * part, part, ncclInt8,
                                                static_cast<int>(source), group.comm(rank), group.stream(rank)),
                                       "receiving"));
      }
    }
    return Nccl(ncclGroupEnd(), "a group");
  };
  return MedianSeconds(group.streams(), run);
}

absl::StatusOr<double> BroadcastNcclSeconds(const CeilingCase& ceiling_case) {
  std::vector<Group> groups;  // one for each source and slice
  for (int source : ceiling_case.sources) {
    for (int slice = 0; slice < ceiling_case.slices(); ++slice) {
      std::vector<int> devices = {source};
      for (size_t i = slice; i < ceiling_case.receivers.size(); i += ceiling_case.slices()) {
        devices.push_back(ceiling_case.receivers[i]);
      }
      const std::vector<int64_t> bytes(devices.size(), ceiling_case.part());
      SYNCOPATE_ASSIGN_OR_RETURN(Group group, Group::Create(devices, bytes));
      groups.push_back(std::move(group));
    }
  }
  double seconds = 0;
  // One group after the other: kernels of several communicators on one device may wait for each other for ever.
  for (const Group& group : groups) {
    auto run = [&]() -> absl::Status {
      SYNCOPATE_RETURN_IF_ERROR(Nccl(ncclGroupStart(), "a group"));
      for (size_t rank = 0; rank < group.streams().size(); ++rank) {
        SYNCOPATE_RETURN_IF_ERROR(Nccl(ncclBroadcast(group.data(rank), group.data(rank), ceiling_case.part(), ncclInt8,
                                                     0, group.comm(rank), group.stream(rank)),
                                       "broadcasting"));
      }
      return Nccl(ncclGroupEnd(), "a group");
    };
    SYNCOPATE_ASSIGN_OR_RETURN(const double more, MedianSeconds(group.streams(), run));
    seconds += more;
  }
  return seconds;
}

}  // namespace syncopate::bench
