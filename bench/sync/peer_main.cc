// syncopate-bench-peer OPTIONS | --devices: one process of `syncopate bench sync`, which starts it.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "bench/process/event_sink.h"
#include "bench/sync/bench_peer.h"
#include "bench/sync/peer_device.h"
#include "bench/sync/peer_options.h"

namespace syncopate::bench {
namespace {

absl::Status Run(const std::string& argument, EventSink* sink) {
  if (argument == "--devices") {
    const CudaDevices found = FindCudaDevices();
    sink->Write("answer", {{"count", found.count}, {"name", found.name}, {"error", found.error}});
    return absl::OkStatus();
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const PeerOptions options, ParsePeerOptions(argument));
  // NCCL allows one process of a host for each GPU: each process here claims to be a host, and NCCL connects them by
  // sockets.
  if (options.shared_device) ::setenv("NCCL_HOSTID", std::to_string(::getpid()).c_str(), /*overwrite=*/1);
  std::unique_ptr<PeerDevice> device;
  if (options.device < 0) {
    device = MakeHostDevice();
  } else {
    SYNCOPATE_ASSIGN_OR_RETURN(device, MakeCudaDevice(options.device));
  }
  return options.role == PeerOptions::Role::kSource ? RunSourcePeer(options, device.get(), sink)
                                                    : RunReceiverPeer(options, device.get(), sink);
}

}  // namespace
}  // namespace syncopate::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "syncopate-bench-peer is started by 'syncopate bench sync'\n");
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  syncopate::bench::EventSink sink;
  const absl::Status status = syncopate::bench::Run(argv[1], &sink);
  if (status.ok()) return 0;
  sink.Write("failed", {{"error", std::string(status.message())}});
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
