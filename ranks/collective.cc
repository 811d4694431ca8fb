#include "ranks/collective.h"

#include "absl/strings/str_cat.h"
#include "base/half.h"

namespace syncopate {
namespace {

// A NaN counts as the larger number, unlike in std::max: every rank must see it.
template <typename Number>
Number Larger(Number a, Number b) {
  return a >= b || a != a ? a : b;
}

template <typename Number>
void CombineNumbers(Reduction reduction, void* accumulated, const void* values, int64_t count) {
  auto* const into = static_cast<Number*>(accumulated);
  const auto* const from = static_cast<const Number*>(values);
  if (reduction == Reduction::kSum) {
    for (int64_t i = 0; i < count; ++i) into[i] += from[i];
  } else {
    for (int64_t i = 0; i < count; ++i) into[i] = Larger(into[i], from[i]);
  }
}

// Adds in float32 and rounds after each rank, in the order of ranks: the bits of a sum do not depend on timing.
void CombineBFloat16(Reduction reduction, void* accumulated, const void* values, int64_t count) {
  auto* const into = static_cast<uint16_t*>(accumulated);
  const auto* const from = static_cast<const uint16_t*>(values);
  for (int64_t i = 0; i < count; ++i) {
    const float a = WidenBFloat16(into[i]), b = WidenBFloat16(from[i]);
    into[i] = RoundToBFloat16(reduction == Reduction::kSum ? a + b : Larger(a, b));
  }
}

const char* GetName(Element element) {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kFloat64:
      return "float64";
    case Element::kBFloat16:
      return "bfloat16";
  }
  return "unknown numbers";
}

const char* GetName(Collective::Kind kind) {
  switch (kind) {
    case Collective::Kind::kAllGather:
      return "all-gather";
    case Collective::Kind::kReduceScatter:
      return "reduce-scatter";
    case Collective::Kind::kAllReduce:
      return "all-reduce";
    case Collective::Kind::kBroadcast:
      return "broadcast";
    case Collective::Kind::kBarrier:
      return "barrier";
  }
  return "unknown call";
}

}  // namespace

int64_t ElementBytes(Element element) {
  return element == Element::kBFloat16 ? 2 : element == Element::kFloat32 ? 4 : 8;
}

int64_t Collective::bytes_in(int32_t rank, int32_t world) const {
  switch (kind) {
    case Kind::kReduceScatter:
      return bytes * world;
    case Kind::kBroadcast:
      return rank == root ? bytes : 0;
    case Kind::kBarrier:
      return 0;
    case Kind::kAllGather:
    case Kind::kAllReduce:
      break;
  }
  return bytes;
}

int64_t Collective::bytes_out(int32_t world) const { return kind == Kind::kAllGather ? bytes * world : bytes; }

std::string Collective::ToString() const {
  const std::string name = GetName(kind);
  switch (kind) {
    case Kind::kBarrier:
      return name;
    case Kind::kAllGather:
      return absl::StrCat(name, " of ", bytes, " bytes");
    case Kind::kBroadcast:
      return absl::StrCat(name, " of ", bytes, " bytes from rank ", root);
    case Kind::kReduceScatter:
    case Kind::kAllReduce:
      break;
  }
  return absl::StrCat(name, reduction == Reduction::kSum ? " (sum) of " : " (max) of ", bytes / ElementBytes(element),
                      " ", GetName(element));
}

void Combine(const Collective& call, void* accumulated, const void* values, int64_t bytes) {
  const int64_t count = bytes / ElementBytes(call.element);
  switch (call.element) {
    case Element::kFloat32:
      return CombineNumbers<float>(call.reduction, accumulated, values, count);
    case Element::kFloat64:
      return CombineNumbers<double>(call.reduction, accumulated, values, count);
    case Element::kBFloat16:
      return CombineBFloat16(call.reduction, accumulated, values, count);
  }
}

absl::Status RankLost(const std::string& message) {
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST", message);
}

// Every call is compared: otherwise the bytes of one call could be taken for those of another.
absl::Status RankMismatch(int32_t rank, const Collective& call, int32_t other_rank, const Collective& other_call,
                          uint64_t sequence) {
  return Error(
      absl::StatusCode::kInternal, "RANK_MISMATCH",
      absl::StrCat("as call ", sequence, " rank ", rank, " makes ", call.ToString(), " where rank ", other_rank,
                   " makes ", other_call.ToString(), "; all ranks need the same binary, model and configuration"));
}

}  // namespace syncopate
