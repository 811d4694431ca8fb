#include "synchronizer/ipc/wire.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

// One message is one packet of a seqpacket socket. Protobuf is not needed: descriptors travel with these packets, and
// both sides are always the same build on one host.
namespace syncopate::synchronizer::ipc {
namespace {

constexpr size_t kMaxText = 1024;

enum class Kind : uint8_t { kWant = 1, kGrant = 2, kProgress = 3, kRefusal = 4, kRelease = 5 };

class Writer {
 public:
  explicit Writer(Kind kind) {
    Number(static_cast<uint8_t>(kind));
    // Checked before any other field is read.
    Number(kWireVersion);
  }
  template <typename T>
  void Number(T value) {
    static_assert(std::is_integral_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i) packet_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> 8 * i));
  }
  void Text(const std::string& text) {
    // A text is an explanation for people: its end may be cut.
    std::string cut = text.substr(0, kMaxText);
    Number(static_cast<uint16_t>(cut.size()));
    packet_ += cut;
  }
  void List(const std::vector<int64_t>& values) {
    Number(static_cast<uint16_t>(values.size()));
    for (int64_t value : values) Number(value);
  }
  std::string Take() { return std::move(packet_); }

 private:
  std::string packet_;
};

// Decodes what Writer wrote. After the first field that does not fit, good() is false and all values are zeros.
class Reader {
 public:
  explicit Reader(const std::string& packet) : packet_(packet) {}

  template <typename T>
  T Number() {
    uint64_t value = 0;
    if (!Has(sizeof(T))) return 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(packet_[at_ + i])) << 8 * i;
    }
    at_ += sizeof(T);
    return static_cast<T>(value);
  }
  bool Flag() {
    auto value = Number<uint8_t>();
    good_ = good_ && value <= 1;
    return value == 1;
  }
  std::string Text() {
    size_t size = Number<uint16_t>();
    if (size > kMaxText || !Has(size)) {
      good_ = false;
      return "";
    }
    at_ += size;
    return packet_.substr(at_ - size, size);
  }
  // The elements are sizes, so none may be negative.
  std::vector<int64_t> List() {
    size_t size = Number<uint16_t>();
    std::vector<int64_t> values;
    // Checked before allocating: the list may claim more elements than the packet has.
    if (!Has(size * sizeof(int64_t))) return values;
    for (size_t i = 0; i < size; ++i) {
      values.push_back(Number<int64_t>());
      good_ = good_ && values.back() >= 0;
    }
    return values;
  }
  bool good() const { return good_; }
  bool complete() const { return good_ && at_ == packet_.size(); }

 private:
  bool Has(size_t bytes) {
    good_ = good_ && packet_.size() - at_ >= bytes;
    return good_;
  }

  const std::string& packet_;
  size_t at_ = 0;
  bool good_ = true;
};

std::string Encoded(const Want& want) {
  Writer to(Kind::kWant);
  to.Number(want.attempt);
  to.Number(want.version.epoch);
  to.Number(want.version.step);
  to.Number(want.fingerprint);
  to.Number(want.mapped_memory);
  to.Text(want.device);
  to.Number(want.borrower);
  return to.Take();
}

std::string Encoded(const Grant& grant) {
  Writer to(Kind::kGrant);
  to.Number(grant.attempt);
  to.Number(grant.memory.id);
  to.Text(grant.memory.device);
  to.List(grant.memory.chunks);
  to.Number(static_cast<uint8_t>(grant.complete));
  to.List(grant.progress);
  to.Number(static_cast<uint8_t>(grant.with_handles));
  return to.Take();
}

std::string Encoded(const Progress& progress) {
  Writer to(Kind::kProgress);
  to.Number(progress.attempt);
  to.List(progress.bytes);
  return to.Take();
}

std::string Encoded(const Refusal& refusal) {
  Writer to(Kind::kRefusal);
  to.Number(refusal.attempt);
  to.Number(refusal.code);
  to.Text(refusal.reason);
  to.Text(refusal.message);
  return to.Take();
}

std::string Encoded(const Release& release) {
  Writer to(Kind::kRelease);
  to.Number(release.attempt);
  return to.Take();
}

// Braced initialisers are evaluated from left to right, so the fields are read in order.
Want ReadWant(Reader& from) {
  return {from.Number<int64_t>(),
          {from.Number<int64_t>(), from.Number<int64_t>()},
          from.Number<uint64_t>(),
          from.Number<uint64_t>(),
          from.Text(),
          from.Number<uint64_t>()};
}

Grant ReadGrant(Reader& from) {
  return {from.Number<int64_t>(),
          {from.Number<uint64_t>(), from.Text(), from.List()},
          from.Flag(),
          from.List(),
          from.Flag()};
}

Refusal ReadRefusal(Reader& from) { return {from.Number<int64_t>(), from.Number<int32_t>(), from.Text(), from.Text()}; }

absl::Status BadMessage(const std::string& detail) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", "the peer does not speak this protocol: " + detail);
}

bool Sane(const Grant& grant) {
  if (grant.memory.chunks.empty() || grant.memory.chunks.size() > kMaxHandles) return false;
  int64_t sum = 0;
  for (int64_t bytes : grant.memory.chunks) {
    // Checked before the sum can overflow.
    if (bytes == 0 || bytes > std::numeric_limits<int64_t>::max() - sum) return false;
    sum += bytes;
  }
  return grant.memory.id != 0;
}

bool Sane(const Refusal& refusal) {
  // OK would be no refusal, and other numbers are no codes.
  return refusal.code > static_cast<int32_t>(absl::StatusCode::kOk) &&
         refusal.code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
}

}  // namespace

std::string Encode(const Message& message) {
  std::string packet = std::visit([](const auto& kind) { return Encoded(kind); }, message);
  SYNCOPATE_CHECK(packet.size() <= kMaxMessageBytes);
  return packet;
}

absl::StatusOr<Message> Decode(const std::string& packet) {
  Reader from(packet);
  auto kind = static_cast<Kind>(from.Number<uint8_t>());
  auto version = from.Number<uint32_t>();
  if (!from.good()) return BadMessage("a packet without a header");
  if (version != kWireVersion) {
    return BadMessage(
        absl::StrFormat("its version is %d, ours is %d; run the same build on all members", version, kWireVersion));
  }
  Message message;
  bool sane = true;
  switch (kind) {
    case Kind::kWant:
      message = ReadWant(from);
      break;
    case Kind::kGrant:
      message = ReadGrant(from);
      sane = Sane(std::get<Grant>(message));
      break;
    case Kind::kProgress: {
      auto attempt = from.Number<int64_t>();
      message = Progress{attempt, from.List()};
      break;
    }
    case Kind::kRefusal:
      message = ReadRefusal(from);
      sane = Sane(std::get<Refusal>(message));
      break;
    case Kind::kRelease:
      message = Release{from.Number<int64_t>()};
      break;
    default:
      return BadMessage(absl::StrFormat("message kind %d", static_cast<int>(kind)));
  }
  if (!sane || !from.complete()) return BadMessage(absl::StrFormat("a damaged message of %d bytes", packet.size()));
  return message;
}

Refusal GetRefusal(int64_t attempt, const absl::Status& why) {
  SYNCOPATE_CHECK(!why.ok());
  return {attempt, static_cast<int32_t>(why.code()), ErrorReason(why), std::string(why.message())};
}

absl::Status MakeStatus(const Refusal& refusal) {
  return Error(static_cast<absl::StatusCode>(refusal.code), refusal.reason, refusal.message);
}

}  // namespace syncopate::synchronizer::ipc
