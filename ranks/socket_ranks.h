#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "ranks/communicator.h"
#include "ranks/tcp_socket.h"

namespace syncopate {

// One of several ranks that are processes, over TCP and host memory, with a connection to each other rank. `peers[r]`
// is the connection to rank r; the one of `rank` itself is not valid. `deadline`: how long a call waits for a rank that
// sends nothing. Every rank compares each call of every other rank with its own before it accepts data.
std::unique_ptr<Communicator> MakeSocketRank(std::vector<TcpSocket> peers, int32_t rank, absl::Duration deadline);

}  // namespace syncopate
