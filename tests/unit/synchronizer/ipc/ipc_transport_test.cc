#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "synchronizer/ipc/fetch_route.h"
#include "synchronizer/ipc/rendezvous.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/synchronizer/ipc/ipc_rig.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::Each;

struct Shape {
  const char* source_layout;
  int replicas;
  const char* destination_layout;
};

class IpcShapeTest : public ::testing::TestWithParam<Shape> {};

TEST_P(IpcShapeTest, BringsEveryByteOnceInThreeSyncsAndMapsEachMemoryOnce) {
  IpcRig rig(GetParam().source_layout, GetParam().replicas, GetParam().destination_layout);
  std::vector<int> maps;
  for (int64_t step : {1, 2, 3}) {
    rig.Stage(step);
    ASSERT_THAT(rig.Prepare(step), IsOk());
    EXPECT_THAT(rig.ReceiveAll(), Each(IsOk()));
    for (size_t i = 0; i < rig.members(); ++i) rig.ExpectArrived(static_cast<int32_t>(i));
    rig.Finish();
    std::vector<int> now;
    for (size_t i = 0; i < rig.members(); ++i) now.push_back(rig.member(i)->engine.maps());
    if (step > 1) {
      EXPECT_EQ(now, maps) << "memory was mapped again";
    }
    maps = now;
  }
  EXPECT_EQ(rig.store()->readers(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, IpcShapeTest,
                         ::testing::Values(Shape{"whole", 1, "whole"}, Shape{"flat:2", 2, "whole"},
                                           Shape{"flat:3", 1, "whole"}, Shape{"whole", 3, "whole"},
                                           Shape{"flat:2", 5, "whole"}, Shape{"flat:4", 3, "whole"},
                                           Shape{"flat:2", 1, "whole:2"}, Shape{"fsdp2:2", 3, "whole:2"}));

TEST(IpcTransportTest, WithMoreReplicasThanSourcesASourceHasOneReader) {
  IpcRig rig("whole", 4, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  ASSERT_THAT(rig.ReceiveAll(), Each(IsOk()));
  int read_the_source = 0;
  for (size_t i = 0; i < rig.members(); ++i) {
    EXPECT_EQ(rig.member(i)->engine.maps(), 1);
    read_the_source += rig.member(i)->transport->mapped_memories() == 1 && i == 0 ? 1 : 0;
  }
  EXPECT_EQ(read_the_source, 1);
}

TEST(IpcTransportTest, ReplicasThatLendNothingAreAllServedByTheSources) {
  IpcRig rig("flat:2", 3, "whole", /*relays=*/false);
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  EXPECT_EQ(rig.member()->rendezvous, "");
  EXPECT_THAT(rig.ReceiveAll(), Each(IsOk()));
  for (size_t i = 0; i < rig.members(); ++i) rig.ExpectArrived(static_cast<int32_t>(i));
}

TEST(IpcTransportTest, AReceiverThatKeepsNothingMappedLetsASourceGiveItsMemoryBackAndCollectsNoDescriptors) {
  IpcRig rig("flat:2", 1, "whole", /*relays=*/false, /*mapped_memories=*/0);
  auto count_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  ptrdiff_t before = 0;
  for (int64_t step = 1; step <= 20; ++step) {
    rig.Stage(step);
    ASSERT_THAT(rig.Prepare(step), IsOk());
    ASSERT_THAT(rig.ReceiveOne(0), IsOk());
    rig.ExpectArrived(0);
    rig.Finish();
    EXPECT_EQ(rig.member()->transport->mapped_memories(), 0u);
    EXPECT_EQ(rig.member()->engine.maps(), 2 * step);
    if (step == 2) before = count_descriptors();
  }
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return count_descriptors() <= before; }));
}

TEST(IpcTransportTest, ReplicasThatAreSentDifferentBytesDoNotReadFromEachOther) {
  IpcRig rig("whole", 3, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  ReceiveRequest request = rig.MakeRequest(2);
  EXPECT_EQ(ipc::RouteFor(request, *ipc::HostId())->upstreams[0].name, "rollouter-1 rank 0");
  request.receivers[0].base = false;  // the receiver has the base weights and gets only the adapters
  EXPECT_EQ(ipc::RouteFor(request, *ipc::HostId())->upstreams[0].name, "trainer rank 0");
}

TEST(IpcTransportTest, AVersionThatIsGoneBeforeItIsAskedForIsSupersededAndNotALostPeer) {
  IpcRig rig("flat:2", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.Stage(2);  // a receiver in place comes late: generation must stop first
  bool written = false;
  ReceiveRequest request = rig.MakeRequest(0);
  request.on_writing = [&written] { written = true; };
  EXPECT_THAT(rig.member()->transport->Probe(request, {}), HasReason("SUPERSEDED"));
  EXPECT_THAT(rig.member()->transport->Receive(request, rig.member()->shadow->data(), {}), HasReason("SUPERSEDED"));
  EXPECT_FALSE(written);
}

TEST(IpcTransportTest, AProbeMapsWhatIsReadLaterAndMovesNothing) {
  IpcRig rig("flat:2", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  int copies = 0;
  rig.member()->engine.on_copy = [&](const char*, int64_t) {
    ++copies;
    return absl::OkStatus();
  };
  ASSERT_THAT(rig.member()->transport->Probe(rig.MakeRequest(0), {}), IsOk());
  EXPECT_EQ(copies, 0);
  EXPECT_EQ(rig.member()->transport->mapped_memories(), 2u);
  ASSERT_THAT(rig.ReceiveOne(0), IsOk());
  EXPECT_GT(copies, 0);
  rig.ExpectArrived(0);
}

TEST(IpcTransportTest, ASlotThatIsTakenWhileItIsReadEndsTheTransferAtOnce) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  int copies = 0;
  rig.member()->engine.on_copy = [&](const char*, int64_t) {
    if (++copies == 5) rig.Stage(2);
    return absl::OkStatus();
  };
  absl::Status status = rig.ReceiveOne(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(status, HasReason("SUPERSEDED"));
  EXPECT_LT(copies, 12) << "at most what was queued";
}

TEST(IpcTransportTest, EvenTheLastChunkIsNotTrustedIfTheSlotWasTakenUnderIt) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  int64_t left = rig.plan().bytes();
  rig.member()->engine.on_copy = [&](const char*, int64_t bytes) {
    left -= bytes;
    if (left == 0) rig.Stage(2);
    return absl::OkStatus();
  };
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("SUPERSEDED"));
}

TEST(IpcTransportTest, ASourceThatClosesTheAttemptLetsTheReaderDownAtOnce) {
  IpcRig rig("flat:2", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  int copies = 0;
  rig.member()->engine.on_copy = [&](const char*, int64_t) {
    if (++copies == 3) rig.source(1)->Close(rig.attempt());
    return absl::OkStatus();
  };
  absl::Status status = rig.ReceiveOne(0);
  EXPECT_THAT(status, HasReason("PEER_LOST"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("trainer rank 1"));
}

TEST(IpcTransportTest, ASourceThatDiesIsReportedAndItsMemoryIsUnmapped) {
  IpcRig rig("flat:2", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  ASSERT_THAT(rig.ReceiveOne(0), IsOk());
  rig.Finish();
  EXPECT_EQ(rig.member()->transport->mapped_memories(), 2u);
  rig.Stage(2);
  ASSERT_THAT(rig.Prepare(2), IsOk());
  int copies = 0;
  rig.member()->engine.on_copy = [&](const char*, int64_t) {
    if (++copies == 3) rig.KillSource(1);
    return absl::OkStatus();
  };
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("PEER_LOST"));
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return rig.member()->transport->mapped_memories() == 1; }));
}

TEST(IpcTransportTest, ASourceThatIsGoneBeforeTheTransferIsReported) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.KillSource(0);
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("PEER_LOST"));
}

TEST(IpcTransportTest, StoppingEndsATransferUnderWay) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  int copies = 0;
  rig.member()->engine.on_copy = [&](const char*, int64_t) {
    if (++copies == 4) rig.member()->stop.request_stop();
    return absl::OkStatus();
  };
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("CANCELLED"));
}

TEST(IpcTransportTest, ARelayThatNeverHasTheBytesRunsIntoTheDeadline) {
  IpcRig rig("whole", 2, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  absl::Status status = rig.ReceiveOne(1, absl::Milliseconds(80));  // replica 0 does not receive
  EXPECT_THAT(status, HasReason("DEADLINE"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("rollouter-0 rank 0"));
}

TEST(IpcTransportTest, ARelayThatFailsTellsThoseWhoReadFromIt) {
  IpcRig rig("whole", 3, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  int copies = 0;
  rig.member(1)->engine.on_copy = [&](const char*, int64_t) {
    return ++copies < 6 ? absl::OkStatus() : Error(absl::StatusCode::kInternal, "CUDA_ERROR", "a broken engine");
  };
  std::vector<absl::Status> statuses = rig.ReceiveAll();
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], HasReason("CUDA_ERROR"));
  EXPECT_THAT(statuses[2], HasReason("PEER_LOST"));
}

TEST(IpcTransportTest, ARelayWhoseSourceTookTheVersionBackTellsThatToThoseWhoReadFromIt) {
  IpcRig rig("whole", 2, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  int copies = 0;
  rig.member(0)->engine.on_copy = [&](const char*, int64_t) {
    return ++copies < 3 ? absl::OkStatus() : Error(absl::StatusCode::kAborted, "SUPERSEDED", "a newer version");
  };
  for (const absl::Status& status : rig.ReceiveAll()) EXPECT_THAT(status, HasReason("SUPERSEDED"));
}

TEST(IpcTransportTest, WhatARelayHasWholeCanBeReadAfterItsAttemptUntilItReceivesThereAgain) {
  IpcRig rig("whole", 2, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  ASSERT_THAT(rig.ReceiveOne(0), IsOk());
  rig.member(0)->transport->Close(rig.attempt());
  ASSERT_THAT(rig.ReceiveOne(1), IsOk());
  rig.ExpectArrived(1);
  Prepare next;
  next.attempt = 99;
  next.sources = 1;
  ASSERT_THAT(rig.member(0)->transport->Open(next).status(), IsOk());
  EXPECT_THAT(rig.ReceiveOne(1), HasReason("PEER_LOST"));
}

TEST(IpcTransportTest, MemoryThatCannotBeReachedIsRefusedBeforeAnythingIsCopied) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.member()->engine.map_error = Error(absl::StatusCode::kFailedPrecondition, "NO_PEER_ACCESS", "GPU 1, GPU 2");
  int copies = 0;
  rig.member()->engine.on_copy = [&](const char*, int64_t) {
    ++copies;
    return absl::OkStatus();
  };
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("NO_PEER_ACCESS"));
  EXPECT_EQ(copies, 0);
  EXPECT_FALSE(rig.member()->connected);
}

TEST(IpcTransportTest, AMemberOnAnotherHostIsRefusedByName) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  ReceiveRequest request = rig.MakeRequest(0);
  auto where = *ipc::Rendezvous::Parse(request.sources[0].rendezvous);
  where.host = "elsewhere";
  request.sources[0].rendezvous = where.ToString();
  absl::Status status = rig.member()->transport->Receive(request, rig.member()->shadow->data(), std::stop_token());
  EXPECT_THAT(status, HasReason("OTHER_HOST"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("trainer rank 0"));
}

TEST(IpcTransportTest, AnnouncedMemoryThatTheUpstreamDoesNotLendIsRefused) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  ReceiveRequest request = rig.MakeRequest(0);
  auto where = *ipc::Rendezvous::Parse(request.sources[0].rendezvous);
  where.memory = 4711;  // for example the live weights
  request.sources[0].rendezvous = where.ToString();
  EXPECT_THAT(rig.member()->transport->Receive(request, rig.member()->shadow->data(), std::stop_token()),
              HasReason("MEMORY_MISMATCH"));
}

TEST(IpcTransportTest, CopiesThatCannotBeWaitedForEndTheReceiverForGood) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.member()->engine.stuck = true;
  EXPECT_THAT(rig.ReceiveOne(0, absl::Milliseconds(50)), HasReason("COPY_STUCK"));
  rig.member()->engine.stuck = false;
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("COPY_STUCK"));
  rig.Finish();
  EXPECT_THAT(rig.Prepare(1), HasReason("COPY_STUCK"));
}

TEST(IpcTransportTest, AnAttemptThatWasNotOpenedHasNothingToRead) {
  IpcRig rig("whole", 1, "whole");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.source()->Close(1);
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("PEER_LOST"));
  Prepare wrong;
  wrong.attempt = 2;
  wrong.version = {1, 9};
  EXPECT_THAT(rig.source()->Open(wrong).status(), HasReason("VERSION_NOT_STAGED"));
}

TEST(IpcServerTest, TheSocketLiesInAFolderOfThisUserAloneAndGoesWithTheServer) {
  std::unique_ptr<ipc::IpcServer> server = *ipc::IpcServer::Start({});
  std::filesystem::path socket = server->socket_path();
  struct stat facts {};
  ASSERT_EQ(::stat(socket.parent_path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  EXPECT_EQ(facts.st_uid, ::geteuid());
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(socket.parent_path()));
}

TEST(IpcServerTest, ConnectionsBeyondTheLimitAreHungUpOnAndTheOthersServed) {
  ipc::IpcServer::Options options;
  options.max_sessions = 3;
  std::unique_ptr<ipc::IpcServer> server = *ipc::IpcServer::Start(options);
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < 10; ++i) {
    auto socket = ipc::Connect(server->socket_path());
    ASSERT_THAT(socket.status(), IsOk());
    ipc::Send(socket->get(), ipc::Want{}).IgnoreError();
    sockets.push_back(*std::move(socket));
  }
  int answered = 0;
  int hung_up = 0;
  absl::Time until = Clock::Real()->Now() + kTestDeadline;
  std::set<size_t> settled;
  while (settled.size() < sockets.size() && Clock::Real()->Now() < until) {
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (settled.contains(i)) continue;
      auto packet = ipc::Receive(sockets[i].get());
      if (packet.ok() && !packet->has_value()) continue;
      settled.insert(i);
      (packet.ok() ? answered : hung_up) += 1;
    }
  }
  EXPECT_EQ(answered, 3);
  EXPECT_EQ(hung_up, 7);
}

}  // namespace
}  // namespace syncopate::synchronizer
