// A network cable with its own delay and loss, for tests on machines whose kernel has no netem:
//   syncopate-link-forwarder LEFT RIGHT DELAY_MS LOSS_PERCENT
// makes two TAP devices of these names in this network namespace, prints "ready", and carries each frame from one to
// the other DELAY_MS later, but for LOSS_PERCENT of them, which are drawn from a fixed seed. A device may then be moved
// to another namespace. The devices end with this process.

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestFrame = 65536 + 64;
constexpr size_t kMostFrames = 100'000;  // frames in the cable at once; further frames are lost, as in a full queue

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "link forwarder: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

int OpenTap(const std::string& name) {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) Die("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (name.empty() || name.size() >= sizeof(request.ifr_name)) Die("the device's name " + name);
  std::copy(name.begin(), name.end(), request.ifr_name);
  if (::ioctl(fd, TUNSETIFF, &request) != 0) Die("making " + name);
  return fd;
}

struct Frame {
  Clock::time_point due;
  std::string bytes;
};

// One direction of the cable.
struct Way {
  int from, to;
  std::deque<Frame> frames = {};  // all frames have the same delay, so the first one is due first
};

// Reads all frames that the device has. A device that is down has none.
void TakeFrames(Way& way, Clock::duration delay, double loss, std::mt19937_64& dice) {
  std::string buffer(kLongestFrame, '\0');
  for (;;) {
    const ssize_t size = ::read(way.from, buffer.data(), buffer.size());
    if (size <= 0) return;
    const bool lost = std::uniform_real_distribution<double>(0, 100)(dice) < loss || way.frames.size() >= kMostFrames;
    if (!lost) way.frames.push_back({Clock::now() + delay, buffer.substr(0, static_cast<size_t>(size))});
  }
}

void DeliverFrames(Way& way) {
  while (!way.frames.empty() && way.frames.front().due <= Clock::now()) {
    const std::string& bytes = way.frames.front().bytes;
    // A frame is lost if the device does not take it because the device is down, as on a cable that was pulled out.
    if (::write(way.to, bytes.data(), bytes.size()) < 0 && errno == EINTR) continue;
    way.frames.pop_front();
  }
}

int MillisecondsToNext(const std::array<Way, 2>& ways) {
  int64_t wait = 1000;
  for (const Way& way : ways) {
    if (way.frames.empty()) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(way.frames.front().due - Clock::now()).count();
    wait = std::clamp<int64_t>(left, 0, wait);
  }
  return static_cast<int>(wait);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: syncopate-link-forwarder LEFT RIGHT DELAY_MS LOSS_PERCENT\n");
    return 2;
  }
  const int left = OpenTap(argv[1]), right = OpenTap(argv[2]);
  const auto delay = std::chrono::milliseconds(std::atoi(argv[3]));
  const double loss = std::atof(argv[4]);
  std::printf("ready\n");
  std::fflush(stdout);
  std::mt19937_64 dice(1);
  std::array<Way, 2> ways = {Way{left, right}, Way{right, left}};
  for (;;) {
    pollfd waited[] = {{left, POLLIN, 0}, {right, POLLIN, 0}};
    if (::poll(waited, 2, MillisecondsToNext(ways)) < 0 && errno != EINTR) Die("poll");
    for (Way& way : ways) {
      TakeFrames(way, delay, loss, dice);
      DeliverFrames(way);
    }
  }
}
