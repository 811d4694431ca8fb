#pragma once

namespace syncopate::rpc {

// The largest HTTP/2 frame that a peer may send, bytes. gRPC's own, 16 KiB, cuts an answer of that size in two, each
// part with its own memory and bookkeeping.
inline constexpr int kMaxFrameBytes = 1 << 18;

}  // namespace syncopate::rpc
