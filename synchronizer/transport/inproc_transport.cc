#include "synchronizer/transport/inproc_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer {

void InprocHub::Add(const std::string& name, WeightStore* store) {
  MutexLock lock(&mutex_);
  stores_[name] = store;
}

void InprocHub::Remove(const std::string& name) {
  MutexLock lock(&mutex_);
  stores_.erase(name);
}

WeightStore* InprocHub::Find(const std::string& name) const {
  MutexLock lock(&mutex_);
  auto found = stores_.find(name);
  return found == stores_.end() ? nullptr : found->second;
}

absl::Status InprocReceiver::Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) {
  SYNCOPATE_ASSIGN_OR_RETURN(Readers readers, OpenSources(request));
  // All sources are open and fit the request, so the destination may be overwritten from here on.
  request.on_writing();
  for (const Copy& copy : request.copies) {
    SYNCOPATE_RETURN_IF_ERROR(CopyChunks(request, copy, readers[copy.source].get(), destination, stop));
  }
  return absl::OkStatus();
}

absl::Status InprocReceiver::Probe(const ReceiveRequest& request, std::stop_token /*stop*/) {
  return OpenSources(request).status();
}

absl::StatusOr<InprocReceiver::Readers> InprocReceiver::OpenSources(const ReceiveRequest& request) const {
  Readers readers;
  for (const Copy& copy : request.copies) {
    // One reader for each source; opening a reader pins the version there.
    std::unique_ptr<WeightReader>& reader = readers[copy.source];
    if (reader != nullptr) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(reader, OpenSource(request, copy.source));
  }
  return readers;
}

absl::StatusOr<std::unique_ptr<WeightReader>> InprocReceiver::OpenSource(const ReceiveRequest& request,
                                                                         int32_t rank) const {
  WeightStore* store =
      rank < static_cast<int32_t>(request.sources.size()) ? hub_->Find(request.sources[rank].rendezvous) : nullptr;
  if (store == nullptr) {
    return Error(absl::StatusCode::kUnavailable, "PEER_LOST", absl::StrFormat("source rank %d is gone", rank));
  }
  if (store->fingerprint() != request.manifest_fingerprint) {
    return Error(absl::StatusCode::kFailedPrecondition, reason::kModelMismatch, "the source stages another model");
  }
  return store->Open(request.version);
}

absl::Status InprocReceiver::CopyChunks(const ReceiveRequest& request, const Copy& copy, WeightReader* reader,
                                        char* destination, const std::stop_token& stop) const {
  // Copies in chunks, so that a stop and the deadline are noticed soon, and checking can begin.
  for (int64_t done = 0; done < copy.bytes;) {
    if (stop.stop_requested()) return Error(absl::StatusCode::kCancelled, "CANCELLED", "the attempt was ended");
    if (clock_->Now() >= request.deadline) {
      return Error(absl::StatusCode::kDeadlineExceeded, reason::kDeadline, "the weights did not arrive in time");
    }
    int64_t bytes = std::min(kChunkBytes, copy.bytes - done);
    int64_t from = copy.source_offset + done;
    int64_t to = copy.destination_offset + done;
    SYNCOPATE_RETURN_IF_ERROR(reader->Read({from, from + bytes}, destination + to));
    request.on_arrived({to, to + bytes}, nullptr);
    done += bytes;
  }
  return absl::OkStatus();
}

}  // namespace syncopate::synchronizer
