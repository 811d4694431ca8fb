#include "bench/ceiling/copy_ceiling.h"

#include <algorithm>
#include <memory>

#include "base/status.h"

namespace syncopate::bench {
namespace {

constexpr int64_t kChunk = int64_t{64} << 20;

// An event of one device. Move-only.
class GpuEvent {
 public:
  static absl::StatusOr<GpuEvent> Create(int device) {
    SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaSetDevice(device), "choosing a device"));
    cudaEvent_t event = nullptr;
    SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event"));
    return GpuEvent(event);
  }
  GpuEvent(GpuEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  GpuEvent& operator=(GpuEvent&&) = delete;
  ~GpuEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }

 private:
  explicit GpuEvent(cudaEvent_t event) : event_(event) {}
  cudaEvent_t event_;
};

struct Memory {
  std::vector<GpuBuffer> sources;  // each source's bytes for all slices
  std::vector<GpuBuffer> receivers;
};

absl::StatusOr<Memory> Allocate(const CeilingCase& ceiling_case) {
  Memory memory;
  for (int device : ceiling_case.sources) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto buffer, GpuBuffer::Create(device, ceiling_case.part() * ceiling_case.slices()));
    memory.sources.push_back(std::move(buffer));
  }
  for (int device : ceiling_case.receivers) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto buffer, GpuBuffer::Create(device, ceiling_case.bytes));
    memory.receivers.push_back(std::move(buffer));
  }
  return memory;
}

absl::Status Copy(char* to, int to_device, const char* from, int from_device, int64_t bytes, cudaStream_t stream) {
  return Cuda(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream), "copying between devices");
}

// A link of a chain: `receiver` takes the bytes that `source` has for it from the previous link.
struct Link {
  int receiver = 0;
  int source = 0;
  const char* from = nullptr;
  int from_device = 0;
  char* to = nullptr;
  int before = -1;  // index of the link that fills `from`; -1: a source
};

std::vector<Link> Chains(const CeilingCase& ceiling_case, const Memory& memory) {
  const int sources = static_cast<int>(ceiling_case.sources.size());
  const int slices = ceiling_case.slices();
  std::vector<Link> links;
  for (int source = 0; source < sources; ++source) {
    for (int slice = 0; slice < slices; ++slice) {
      const GpuBuffer& origin = memory.sources[source];
      Link link{0, source, origin.data() + slice * ceiling_case.part(), origin.device(), nullptr, -1};
      for (int step = 0; step < ceiling_case.replicas; ++step) {
        link.receiver = (source + step) % ceiling_case.replicas * slices + slice;
        const GpuBuffer& target = memory.receivers[link.receiver];
        link.to = target.data() + source * ceiling_case.part();
        links.push_back(link);
        link.from = link.to;
        link.from_device = target.device();
        link.before = static_cast<int>(links.size()) - 1;
      }
    }
  }
  return links;
}

}  // namespace

absl::StatusOr<double> DirectCopySeconds(const CeilingCase& ceiling_case) {
  SYNCOPATE_ASSIGN_OR_RETURN(Memory memory, Allocate(ceiling_case));
  std::vector<GpuStream> streams;
  for (int device : ceiling_case.receivers) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto stream, GpuStream::Create(device));
    streams.push_back(std::move(stream));
  }
  const size_t sources = ceiling_case.sources.size();
  auto run = [&]() -> absl::Status {
    for (size_t round = 0; round < sources; ++round) {
      for (size_t receiver = 0; receiver < streams.size(); ++receiver) {
        const size_t source = (receiver + round) % sources;
        const GpuBuffer& from = memory.sources[source];
        const GpuBuffer& to = memory.receivers[receiver];
        const int64_t slice = static_cast<int64_t>(receiver) % ceiling_case.slices();
        SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaSetDevice(to.device()), "choosing a device"));
        SYNCOPATE_RETURN_IF_ERROR(Copy(to.data() + source * ceiling_case.part(), to.device(),
                                       from.data() + slice * ceiling_case.part(), from.device(), ceiling_case.part(),
                                       streams[receiver].get()));
      }
    }
    return absl::OkStatus();
  };
  return MedianSeconds(streams, run);
}

absl::StatusOr<double> ChainCopySeconds(const CeilingCase& ceiling_case) {
  SYNCOPATE_ASSIGN_OR_RETURN(Memory memory, Allocate(ceiling_case));
  const std::vector<Link> links = Chains(ceiling_case, memory);
  const int64_t chunks = (ceiling_case.part() + kChunk - 1) / kChunk;
  std::vector<GpuStream> streams;
  std::vector<GpuEvent> events;  // keyed by link and chunk
  for (const Link& link : links) {
    const int device = ceiling_case.receivers[link.receiver];
    SYNCOPATE_ASSIGN_OR_RETURN(auto stream, GpuStream::Create(device));
    streams.push_back(std::move(stream));
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      SYNCOPATE_ASSIGN_OR_RETURN(auto event, GpuEvent::Create(device));
      events.push_back(std::move(event));
    }
  }
  auto run = [&]() -> absl::Status {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t begin = chunk * kChunk;
      const int64_t bytes = std::min(kChunk, ceiling_case.part() - begin);
      for (size_t i = 0; i < links.size(); ++i) {
        const Link& link = links[i];
        const int device = ceiling_case.receivers[link.receiver];
        SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaSetDevice(device), "choosing a device"));
        if (link.before >= 0) {
          SYNCOPATE_RETURN_IF_ERROR(Cuda(
              cudaStreamWaitEvent(streams[i].get(), events[link.before * chunks + chunk].get(), 0), "ordering copies"));
        }
        SYNCOPATE_RETURN_IF_ERROR(
            Copy(link.to + begin, device, link.from + begin, link.from_device, bytes, streams[i].get()));
        SYNCOPATE_RETURN_IF_ERROR(
            Cuda(cudaEventRecord(events[i * chunks + chunk].get(), streams[i].get()), "an event"));
      }
    }
    return absl::OkStatus();
  };
  return MedianSeconds(streams, run);
}

}  // namespace syncopate::bench
