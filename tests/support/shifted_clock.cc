// A library for LD_PRELOAD: the process reads a wall clock that is SYNCOPATE_CLOCK_SHIFT seconds ahead, and its timed
// waits last as long as they would without the library. scripts/hosts.sh uses it to make hosts whose clocks differ.
//
// Only CLOCK_REALTIME is shifted, where programs read it by libc. Absolute deadlines of that clock are shifted back
// before they reach the kernel, whose clock is not shifted. (libfaketime does not shift the deadlines of abseil, which
// calls futex itself, so a wait of abseil lasts for the whole shift.) Times of files come from the kernel, as on a file
// system that another host serves.

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>

namespace {

// A deadline above this belongs to the wall clock: no machine has been up for so long.
constexpr time_t kLeastWallClock = 1'000'000'000;

time_t GetShift() {
  static const time_t kShift = [] {
    const char* const text = getenv("SYNCOPATE_CLOCK_SHIFT");
    return text == nullptr ? 0 : static_cast<time_t>(strtoll(text, nullptr, 10));
  }();
  return kShift;
}

// The function of the same name that this library hides.
template <typename Function>
Function Next(const char* name, const char* version = nullptr) {
  void* found = version == nullptr ? nullptr : dlvsym(RTLD_NEXT, name, version);
  if (found == nullptr) found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) abort();
  return reinterpret_cast<Function>(found);
}

bool IsWallClock(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

// Converts a deadline to the kernel's clock.
class Deadline {
 public:
  explicit Deadline(const timespec* given) : given_(given) {
    if (given == nullptr || given->tv_sec < kLeastWallClock) return;
    shifted_ = *given;
    shifted_.tv_sec -= GetShift();
    given_ = &shifted_;
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  const timespec* get() const { return given_; }

 private:
  const timespec* given_;
  timespec shifted_{};
};

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static const auto kNext = Next<int (*)(clockid_t, timespec*)>("clock_gettime");
  const int result = kNext(clock, now);
  if (result == 0 && IsWallClock(clock)) now->tv_sec += GetShift();
  return result;
}

int gettimeofday(timeval* now, void* zone) noexcept {
  static const auto kNext = Next<int (*)(timeval*, void*)>("gettimeofday");
  const int result = kNext(now, zone);
  if (result == 0) now->tv_sec += GetShift();
  return result;
}

time_t time(time_t* now) noexcept {
  static const auto kNext = Next<time_t (*)(time_t*)>("time");
  const time_t shifted = kNext(nullptr) + GetShift();
  if (now != nullptr) *now = shifted;
  return shifted;
}

int timespec_get(timespec* now, int base) noexcept {
  static const auto kNext = Next<int (*)(timespec*, int)>("timespec_get");
  const int result = kNext(now, base);
  if (result == TIME_UTC) now->tv_sec += GetShift();
  return result;
}

// Code such as abseil calls futex by itself.
long syscall(long number, ...) noexcept {
  static const auto kNext = Next<long (*)(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (number != SYS_futex) return kNext(number, words[0], words[1], words[2], words[3], words[4], words[5]);
  const long command = words[1] & FUTEX_CMD_MASK;
  const bool is_absolute = command == FUTEX_WAIT_BITSET || command == FUTEX_LOCK_PI || command == FUTEX_WAIT_REQUEUE_PI;
  const Deadline deadline(is_absolute ? reinterpret_cast<const timespec*>(words[3]) : nullptr);
  const long timeout = is_absolute ? reinterpret_cast<long>(deadline.get()) : words[3];
  return kNext(number, words[0], words[1], words[2], timeout, words[4], words[5]);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  static const auto kNext =
      Next<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait", "GLIBC_2.3.2");
  return kNext(condition, mutex, Deadline(deadline).get());
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  static const auto kNext =
      Next<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>("pthread_cond_clockwait");
  return kNext(condition, mutex, clock, Deadline(deadline).get());
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* deadline) noexcept {
  static const auto kNext = Next<int (*)(pthread_mutex_t*, const timespec*)>("pthread_mutex_timedlock");
  return kNext(mutex, Deadline(deadline).get());
}

int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* deadline) noexcept {
  static const auto kNext = Next<int (*)(pthread_mutex_t*, clockid_t, const timespec*)>("pthread_mutex_clocklock");
  return kNext(mutex, clock, Deadline(deadline).get());
}

int pthread_rwlock_timedrdlock(pthread_rwlock_t* lock, const timespec* deadline) noexcept {
  static const auto kNext = Next<int (*)(pthread_rwlock_t*, const timespec*)>("pthread_rwlock_timedrdlock");
  return kNext(lock, Deadline(deadline).get());
}

int pthread_rwlock_timedwrlock(pthread_rwlock_t* lock, const timespec* deadline) noexcept {
  static const auto kNext = Next<int (*)(pthread_rwlock_t*, const timespec*)>("pthread_rwlock_timedwrlock");
  return kNext(lock, Deadline(deadline).get());
}

int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  static const auto kNext = Next<int (*)(sem_t*, const timespec*)>("sem_timedwait");
  return kNext(semaphore, Deadline(deadline).get());
}

int sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* deadline) {
  static const auto kNext = Next<int (*)(sem_t*, clockid_t, const timespec*)>("sem_clockwait");
  return kNext(semaphore, clock, Deadline(deadline).get());
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* until, timespec* left) {
  static const auto kNext = Next<int (*)(clockid_t, int, const timespec*, timespec*)>("clock_nanosleep");
  const bool is_absolute = (flags & TIMER_ABSTIME) != 0;
  return kNext(clock, flags, is_absolute ? Deadline(until).get() : until, left);
}

int timerfd_settime(int timer, int flags, const itimerspec* wanted, itimerspec* before) noexcept {
  static const auto kNext = Next<int (*)(int, int, const itimerspec*, itimerspec*)>("timerfd_settime");
  if ((flags & TFD_TIMER_ABSTIME) == 0) return kNext(timer, flags, wanted, before);
  itimerspec shifted = *wanted;
  shifted.it_value = *Deadline(&wanted->it_value).get();
  return kNext(timer, flags, &shifted, before);
}

}  // extern "C"
