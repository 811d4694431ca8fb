#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace syncopate::testing {

// Forwards TCP connections between processes of this machine, and can disturb one in the middle of a large download,
// which is data from the target to the client. Thread-safe.
class TcpRelay {
 public:
  // Connections to port() go to `target` on 127.0.0.1. Connections made before the target listens are closed.
  explicit TcpRelay(int target);
  ~TcpRelay();
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  int port() const { return port_; }
  // From this call on, a connection whose present download has brought more than `bytes` is cut. Only the first such
  // connection is cut.
  void CutOne(int64_t bytes);
  // From this call on, every connection whose present download has brought more than `bytes` is stopped until
  // Release().
  void HoldAll(int64_t bytes);
  void Release();
  int cut() const { return cut_; }              // connections cut so far
  int held() const { return held_; }            // connections stopped now
  int downloads() const { return downloads_; }  // connections with a download in progress

 private:
  enum class Mode : uint8_t { kForward, kCut, kHold };

  void Accept();
  void Carry(int from_client);
  // Copies the available bytes from one socket to the other; false at the end of either.
  static bool Forward(int from, int to, int64_t* bytes);

  const int target_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::atomic<Mode> mode_ = Mode::kForward;
  std::atomic<int64_t> threshold_ = 0;
  std::atomic<int> cut_ = 0, held_ = 0, downloads_ = 0;
  Mutex mutex_;
  std::vector<std::thread> carriers_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace syncopate::testing
