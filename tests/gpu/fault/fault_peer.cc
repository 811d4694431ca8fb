#include "tests/gpu/fault/fault_peer.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "bench/cuda/probe.h"
#include "cuda/device.h"
#include "tests/gpu/fault/peer_protocol.h"
#include "tests/gpu/transports/gpu_member.h"

namespace syncopate::synchronizer {
namespace {

constexpr absl::Duration kForgotten = absl::Seconds(120);  // after this silence the test is taken to be gone

// The place and the kind of death that this process is to inflict on itself.
struct Death {
  int signal = 0;
  std::string at;
  int n = 0;

  static Death Of(const Json& command) {
    if (!command.contains("die")) return {};
    const Json& die = command.at("die");
    return {die.at("signal"), die.at("at"), die.value("n", 0)};
  }
  void If(const char* place) const {
    if (signal != 0 && at == place) ::kill(::getpid(), signal);
  }
};

class Peer {
 public:
  Peer(int control, const GpuCase* of) : control_(control), case_(of) {}
  ~Peer() {
    if (receiver_ != nullptr) receiver_->receiver->FinishAny();
  }

  absl::Status Open(const std::string& role, int32_t rank, int place, const std::string& incarnation) {
    int gpus = 0;
    while (gpus < kFaultPlaces && cuda::CheckGpu(gpus).ok()) ++gpus;
    if (gpus == 0) return cuda::CheckGpu(0);
    // NCCL accepts one process of a host for each GPU. These processes claim to be hosts, and NCCL connects them by
    // sockets.
    if (gpus < kFaultPlaces) ::setenv("NCCL_HOSTID", incarnation.c_str(), /*overwrite=*/1);
    const int device = device_ = place % gpus;
    if (role == "source") {
      SYNCOPATE_ASSIGN_OR_RETURN(source_, GpuSource::Create(case_, rank, device, incarnation));
    } else {
      SYNCOPATE_ASSIGN_OR_RETURN(receiver_, GpuReceiver::Create(case_, rank, device, incarnation));
    }
    Say({{"ready", true}});
    return absl::OkStatus();
  }

  // Serves until the test closes the socket.
  void Serve() {
    for (;;) {
      absl::StatusOr<Json> command = ReceiveJson(control_, kForgotten);
      if (!command.ok()) return;
      const std::string what = command->at("do");
      if (what == "stage") Stage(command->at("step"));
      if (what == "prepare") DoPrepare(MakePrepare(*command));
      if (what == "transfer") DoTransfer(*command);
      if (what == "install") Install(command->at("attempt"));
      if (what == "finish") Finish(command->at("attempt"));
      if (what == "check") Check();
    }
  }

 private:
  void Say(const Json& message) {
    MutexLock lock(&mutex_);
    SendJson(control_, message).IgnoreError();  // Serve notices a test that is gone
  }
  static std::string GetReason(const absl::Status& status) {
    if (status.ok()) return "";
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return ErrorReason(status).empty() ? "UNKNOWN" : ErrorReason(status);
  }

  void Stage(int64_t step) {
    absl::StatusOr<std::vector<uint64_t>> digests = source_->Stage(step);
    Say({{"digests", digests.ok() ? ToJson(*digests) : Json::array()}, {"reason", GetReason(digests.status())}});
  }

  void DoPrepare(const Prepare& prepare) {
    absl::StatusOr<std::string> rendezvous;
    if (source_ != nullptr) {
      rendezvous = source_->source->Prepare(prepare);
    } else {
      absl::StatusOr<WeightReceiver::Prepared> prepared = receiver_->receiver->Prepare(prepare);
      rendezvous = prepared.ok() ? absl::StatusOr<std::string>(prepared->rendezvous) : prepared.status();
    }
    Say({{"rendezvous", rendezvous.ok() ? *rendezvous : ""}, {"reason", GetReason(rendezvous.status())}});
  }

  void DoTransfer(const Json& command) {
    const Death death = Death::Of(command);
    const Transfer transfer = TransferFor(command);
    death.If("start");
    auto moved = [this, attempt = transfer.attempt](const absl::Status& status) {
      Say({{"moved", attempt}, {"reason", GetReason(status)}});
    };
    if (source_ != nullptr) {
      source_->source->Transfer(transfer, moved);
      if (death.at == "after_ms") {
        std::this_thread::sleep_for(std::chrono::milliseconds(death.n));
        death.If("after_ms");
      }
      return;
    }
    receiver_->transport->on_arrival = [death](int before) {
      if (before == death.n) death.If("arrival");
    };
    transfer_ = std::jthread([this, transfer, death, moved] {
      absl::Status received = receiver_->receiver->Transfer(transfer).status();
      death.If("received");
      moved(received);
    });
  }

  void Install(int64_t attempt) { Say({{"reason", GetReason(receiver_->receiver->Install({attempt}).status())}}); }

  void Finish(int64_t attempt) {
    if (source_ != nullptr) source_->source->Finish(attempt);
    if (receiver_ != nullptr) receiver_->receiver->Finish(attempt);
  }

  void Check() {
    const int64_t serving = receiver_ == nullptr ? 0 : receiver_->receiver->serving().step;
    Say({{"reason", GetReason(bench::CheckContext(device_))}, {"serving", serving}});
  }

  const int control_;
  const GpuCase* const case_;
  int device_ = 0;
  Mutex mutex_;  // guards: one answer at a time
  std::unique_ptr<GpuSource> source_;
  std::unique_ptr<GpuReceiver> receiver_;
  std::jthread transfer_;
};

}  // namespace

int RunFaultPeer(char** args) {
  absl::StatusOr<GpuCase> of =
      GpuCase::Create(GpuTestModel(kFaultModelWidth), args[1], kFaultSourceLayout, kFaultDestinationLayout);
  absl::Status status = of.status();
  if (status.ok()) {
    Peer peer(std::atoi(args[0]), &*of);
    status = peer.Open(args[2], std::atoi(args[3]), std::atoi(args[4]), args[5]);
    if (status.ok()) peer.Serve();
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

}  // namespace syncopate::synchronizer
