// What calls between ranks cost over TCP (ranks/socket_ranks.h), beside a star, through whose rank 0 all bytes go.
//
//   ranks_bench 3                         three ranks, threads of this process, over loopback
//   ranks_bench 1 HOST:PORT HOST:PORT ... rank 1 of several processes, which all get the same addresses
//
// Rank 0 prints the median of each call's times. scripts/hosts.sh ranks MBIT runs it on three hosts.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "ranks/socket_meeting.h"
#include "ranks/tcp_socket.h"

namespace syncopate {
namespace {

constexpr absl::Duration kWithin = absl::Minutes(2);
constexpr int64_t kSizes[] = {1 << 10, 64 << 10, 4 << 20};
constexpr int kRounds = 9;

// All calls of ranks whose only connections are to rank 0, which gathers the input of every rank and sends all of it,
// or the sum, to every rank.
class Star {
 public:
  static absl::StatusOr<Star> Meet(int32_t rank, int32_t world, TcpListener& listener, const HostPort& rank0) {
    Star star;
    star.rank_ = rank;
    const absl::Time until = Clock::Real()->Now() + kWithin;
    if (rank > 0) {
      SYNCOPATE_ASSIGN_OR_RETURN(TcpSocket socket, DialTcp(rank0, "rank 0", until, nullptr));
      SYNCOPATE_RETURN_IF_ERROR(socket.Send(&rank, sizeof(rank), until));
      star.peers_.push_back(std::move(socket));
      return star;
    }
    star.peers_.resize(static_cast<size_t>(world) - 1);
    for (int32_t i = 1; i < world; ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(TcpSocket socket, listener.Accept(until));
      int32_t from = 0;
      SYNCOPATE_RETURN_IF_ERROR(socket.Receive(&from, sizeof(from), until));
      if (from < 1 || from >= world) return RankLost("not a rank");
      star.peers_[static_cast<size_t>(from) - 1] = std::move(socket);
    }
    return star;
  }

  absl::Status AllGather(const std::vector<float>& mine, std::vector<float>& all) {
    const absl::Time until = Clock::Real()->Now() + kWithin;
    const auto part = static_cast<int64_t>(mine.size() * sizeof(float));
    if (rank_ > 0) {
      SYNCOPATE_RETURN_IF_ERROR(peers_[0].Send(mine.data(), part, until));
      return peers_[0].Receive(all.data(), static_cast<int64_t>(all.size() * sizeof(float)), until);
    }
    std::copy(mine.begin(), mine.end(), all.begin());
    for (size_t i = 0; i < peers_.size(); ++i) {
      SYNCOPATE_RETURN_IF_ERROR(peers_[i].Receive(all.data() + (i + 1) * mine.size(), part, until));
    }
    for (TcpSocket& peer : peers_) {
      SYNCOPATE_RETURN_IF_ERROR(peer.Send(all.data(), static_cast<int64_t>(all.size() * sizeof(float)), until));
    }
    return absl::OkStatus();
  }

  // `part`: the elements of the sum that each rank gets; 0: all of them.
  absl::Status Reduce(std::vector<float>& values, size_t part) {
    const absl::Time until = Clock::Real()->Now() + kWithin;
    const auto whole = static_cast<int64_t>(values.size() * sizeof(float));
    const auto back = part == 0 ? whole : static_cast<int64_t>(part * sizeof(float));
    if (rank_ > 0) {
      SYNCOPATE_RETURN_IF_ERROR(peers_[0].Send(values.data(), whole, until));
      return peers_[0].Receive(values.data(), back, until);
    }
    std::vector<float> theirs(values.size());
    for (TcpSocket& peer : peers_) {
      SYNCOPATE_RETURN_IF_ERROR(peer.Receive(theirs.data(), whole, until));
      for (size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
    }
    for (size_t i = 0; i < peers_.size(); ++i) {
      SYNCOPATE_RETURN_IF_ERROR(peers_[i].Send(values.data() + (i + 1) * part, back, until));
    }
    return absl::OkStatus();
  }

 private:
  int32_t rank_ = 0;
  std::vector<TcpSocket> peers_;  // rank 0: by rank; others: rank 0
};

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

double MedianSeconds(Communicator& ranks, const std::function<absl::Status()>& call) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    CheckOk(ranks.Barrier());
    const auto begun = std::chrono::steady_clock::now();
    CheckOk(call());
    CheckOk(ranks.Barrier());  // until the last rank has its result
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

void Measure(Communicator& ranks, Star& star) {
  const auto world = static_cast<size_t>(ranks.world());
  for (const int64_t bytes : kSizes) {
    const auto count = static_cast<size_t>(bytes) / sizeof(float);
    std::vector<float> mine(count, 1.0f), all(world * count, 1.0f), values(count, 1.0f);
    auto show = [&](const char* name, const std::function<absl::Status()>& by_mesh,
                    const std::function<absl::Status()>& by_star) {
      // In turn, so that both see the same machine.
      const double mesh = MedianSeconds(ranks, by_mesh), through0 = MedianSeconds(ranks, by_star);
      if (ranks.rank() != 0) return;
      std::printf("%-14s of %8lld bytes: %9.3f ms, star %9.3f ms, %.2f times as fast\n", name,
                  static_cast<long long>(bytes), 1e3 * mesh, 1e3 * through0, through0 / mesh);
      std::fflush(stdout);
    };
    show(
        "all-gather", [&] { return ranks.AllGather(mine.data(), all.data(), bytes); },
        [&] { return star.AllGather(mine, all); });
    show(
        "reduce-scatter",
        [&] { return ranks.ReduceScatter(all.data(), mine.data(), static_cast<int64_t>(count), Element::kFloat32); },
        [&] { return star.Reduce(all, count); });
    show(
        "all-reduce",
        [&] { return ranks.AllReduce(values.data(), static_cast<int64_t>(count), Element::kFloat32, Reduction::kSum); },
        [&] { return star.Reduce(values, 0); });
  }
}

// One rank. The star has the port after each mesh's.
void RunRank(int32_t rank, SocketMeeting& meeting, TcpListener& star_listener, const std::vector<HostPort>& addresses,
             const HostPort& star_rank0) {
  const auto world = static_cast<int32_t>(addresses.size());
  auto ranks = meeting.Meet({.rank = rank, .world = world}, addresses);
  CheckOk(ranks.status());
  auto star = Star::Meet(rank, world, star_listener, star_rank0);
  CheckOk(star.status());
  Measure(**ranks, *star);
}

int RunThreads(int32_t world) {
  std::vector<SocketMeeting> meetings;
  std::vector<HostPort> addresses;
  for (int32_t rank = 0; rank < world; ++rank) {
    auto meeting = SocketMeeting::Open({"127.0.0.1", 0}, "the address");
    CheckOk(meeting.status());
    addresses.push_back(meeting->address());
    meetings.push_back(*std::move(meeting));
  }
  auto listener = TcpListener::Open({"127.0.0.1", 0});
  CheckOk(listener.status());
  const HostPort star_rank0{"127.0.0.1", listener->port()};
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back(
        [&, rank] { RunRank(rank, meetings[static_cast<size_t>(rank)], *listener, addresses, star_rank0); });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

int RunProcess(int32_t rank, const std::vector<HostPort>& addresses) {
  const HostPort& own = addresses[static_cast<size_t>(rank)];
  auto meeting = SocketMeeting::Open(own, "the address");
  CheckOk(meeting.status());
  auto after = [](const HostPort& address) { return HostPort{address.host, static_cast<uint16_t>(address.port + 1)}; };
  auto listener = TcpListener::Open(after(own));
  CheckOk(listener.status());
  RunRank(rank, *meeting, *listener, addresses, after(addresses[0]));
  return 0;
}

int Main(int argc, char** argv) {
  int32_t number = 0;
  std::vector<HostPort> addresses;
  bool is_good = argc >= 2 && absl::SimpleAtoi(argv[1], &number);
  for (int i = 2; i < argc; ++i) {
    const auto address = ParseHostPort(argv[i]);
    is_good = is_good && address.ok();
    if (address.ok()) addresses.push_back(*address);
  }
  if (is_good && addresses.empty() && number >= 2 && number <= 64) return RunThreads(number);
  if (is_good && number >= 0 && number < static_cast<int32_t>(addresses.size())) return RunProcess(number, addresses);
  std::fputs("usage: ranks_bench WORLD | ranks_bench RANK HOST:PORT HOST:PORT ...\n", stderr);
  return 2;
}

}  // namespace
}  // namespace syncopate

int main(int argc, char** argv) { return syncopate::Main(argc, argv); }
