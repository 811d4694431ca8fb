#include "trainer/actor/host_pieces.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/log.h"

namespace syncopate::trainer {
namespace {

struct OnHost {
  at::Tensor numbers;
  std::optional<c10::Event> copied;  // none: they were there
};

OnHost Copy(const at::Tensor& piece) {
  if (piece.is_cpu()) return {piece, std::nullopt};
  const at::TensorOptions page_locked = at::TensorOptions(piece.scalar_type()).pinned_memory(true);
  OnHost copy{at::empty(piece.sizes(), page_locked), c10::Event(piece.device().type())};
  copy.numbers.copy_(piece, /*non_blocking=*/true);
  copy.copied->record(c10::impl::VirtualGuardImpl(piece.device().type()).getStream(piece.device()));
  return copy;
}

// Waits for a copy that nobody uses any more: it reads memory that may be freed next.
void Abandon(const OnHost& copy) {
  if (!copy.copied.has_value()) return;
  try {
    copy.copied->synchronize();
  } catch (const c10::Error& error) {
    SYNCOPATE_LOG(kError, "a copy to the host has failed: %s", error.what_without_backtrace());
  }
}

}  // namespace

std::vector<int64_t> CutPieces(int64_t begin, int64_t border, int64_t end, int64_t most) {
  std::vector<int64_t> borders = {begin};
  while (borders.back() < end) {
    const int64_t last = borders.back();
    borders.push_back(std::min(last + most, last < border ? std::min(border, end) : end));
  }
  return borders;
}

absl::Status UseOnHost(int64_t count, const std::function<at::Tensor(int64_t)>& make,
                       const std::function<absl::Status(int64_t, absl::string_view)>& use) {
  OnHost present, next;
  const absl::Cleanup abandon = [&] {
    Abandon(present);
    Abandon(next);
  };
  if (count > 0) next = Copy(make(0));
  for (int64_t i = 0; i < count; ++i) {
    present = std::exchange(next, OnHost());
    if (i + 1 < count) next = Copy(make(i + 1));
    if (present.copied.has_value()) present.copied->synchronize();
    SYNCOPATE_RETURN_IF_ERROR(use(i, {static_cast<const char*>(present.numbers.data_ptr()), present.numbers.nbytes()}));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
