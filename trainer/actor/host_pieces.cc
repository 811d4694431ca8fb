#include "trainer/actor/host_pieces.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>

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

}  // namespace

absl::Status UseOnHost(int64_t count, const std::function<at::Tensor(int64_t)>& make,
                       const std::function<absl::Status(int64_t, absl::string_view)>& use) {
  OnHost next;
  if (count > 0) next = Copy(make(0));
  for (int64_t i = 0; i < count; ++i) {
    const OnHost present = std::move(next);
    if (i + 1 < count) next = Copy(make(i + 1));
    if (present.copied.has_value()) present.copied->synchronize();
    SYNCOPATE_RETURN_IF_ERROR(use(i, {static_cast<const char*>(present.numbers.data_ptr()), present.numbers.nbytes()}));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
