// syncopate-bench-data OPTIONS: the trainer's data service; `syncopate bench control` starts it.
#include <signal.h>

#include <cstdio>
#include <string>

#include "base/serving.h"
#include "base/status.h"
#include "bench/control/data_peer.h"
#include "bench/process/event_sink.h"

namespace syncopate::bench {
namespace {

absl::Status Run(const std::string& argument, EventSink* sink) {
  SYNCOPATE_ASSIGN_OR_RETURN(const DataPeerOptions options, ParseDataPeerOptions(argument));
  return RunDataPeer(options, sink);
}

}  // namespace
}  // namespace syncopate::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "syncopate-bench-data is started by 'syncopate bench control'\n");
    return 2;
  }
  syncopate::PrepareToServe();
  ::signal(SIGPIPE, SIG_IGN);
  syncopate::bench::EventSink sink;
  const absl::Status status = syncopate::bench::Run(argv[1], &sink);
  if (status.ok()) return 0;
  sink.Write("failed", {{"error", std::string(status.message())}});
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
