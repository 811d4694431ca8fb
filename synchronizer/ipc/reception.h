#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "synchronizer/ipc/copy_engine.h"
#include "synchronizer/ipc/fetch_cursor.h"
#include "synchronizer/ipc/fetch_route.h"
#include "synchronizer/ipc/ipc_server.h"
#include "synchronizer/ipc/mapping_cache.h"
#include "synchronizer/ipc/unix_socket.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::synchronizer::ipc {

// One Receive of the transport "ipc", from the first connection to the last chunk. Used by one thread.
class Reception {
 public:
  struct Options {
    int64_t chunk_bytes = 0;
    int64_t bytes_in_flight = 0;
    absl::Duration poll_interval;
    absl::Duration drain_deadline;
    const Clock* clock = nullptr;
  };
  // The objects that it uses. All are borrowed except the cache, which outlives this object in the server's watches.
  struct Parts {
    CopyEngine* engine = nullptr;
    CopyQueue* queue = nullptr;  // idle
    std::shared_ptr<MappingCache> mappings;
    IpcServer* server = nullptr;  // gets the progress, for replicas that read from the destination
  };

  Reception(const Options& options, Parts parts, const ReceiveRequest& request, FetchRoute route, char* destination);
  ~Reception();  // closes connections, except those that watch memory which stays mapped

  // See ReceiverTransport::Receive. INTERNAL reason COPY_STUCK if copies may still be under way in the queue: then
  // neither the queue nor mappings() may be freed.
  absl::Status Run(const std::stop_token& stop);
  // See ReceiverTransport::Probe. Maps the memory that Run would read. Call instead of Run; needs no queue.
  absl::Status Probe(const std::stop_token& stop);
  std::vector<std::shared_ptr<const MappedMemory>> mappings() const;  // from which it reads

 private:
  struct Link {
    FileDescriptor socket;
    std::shared_ptr<const MappedMemory> mapped;  // null until granted, unless found in the cache
    bool granted = false;
  };

  absl::Status Attempt();
  absl::Status ConnectAll();
  absl::Status WaitForGrants();
  absl::Status CopyAll();
  absl::Status IssueChunks();
  absl::Status CollectFinishedChunks();
  // Sleeps until a message arrives or copies must be polled, then handles the messages.
  absl::Status WaitForNews();
  absl::Status TakeNews(size_t upstream);
  absl::Status OnMessage(size_t upstream, Packet packet);
  absl::Status OnGrant(size_t upstream, Grant grant, std::vector<FileDescriptor> handles);
  void KeepMapped(const Link& link, uint64_t memory);
  absl::Status CheckTime() const;
  absl::Status Blame(size_t upstream, const absl::Status& status) const;

  const Options options_;
  const Parts parts_;
  const ReceiveRequest& request_;
  const FetchRoute route_;
  char* const destination_;
  const WakeUp wake_;

  std::stop_token stop_;
  bool writing_ = false;
  FetchCursor cursor_;
  std::vector<Link> links_;  // in the order of route_.upstreams
  int64_t finished_ = 0;     // number of copies that the queue has ever finished
};

}  // namespace syncopate::synchronizer::ipc
