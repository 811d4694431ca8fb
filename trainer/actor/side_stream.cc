#include "trainer/actor/side_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace syncopate::trainer {
namespace {

c10::Stream CurrentStream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

SideStream::Mark Record(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

}  // namespace

SideStream::SideStream(at::Device device, Priority priority) : device_(device) {
  if (device.is_cpu()) return;
  // High for collectives: one that finds no free multiprocessor delays all ranks.
  stream_ = c10::impl::VirtualGuardImpl(device.type())
                .getStreamFromGlobalPool(device, /*isHighPriority=*/priority == Priority::kHigh);
}

absl::StatusOr<SideStream::Mark> SideStream::Run(const std::function<absl::Status()>& work) {
  if (!stream_.has_value()) {
    SYNCOPATE_RETURN_IF_ERROR(work());
    return Mark();
  }
  Record(CurrentStream(device_))->block(*stream_);
  {
    c10::StreamGuard guard(*stream_);
    SYNCOPATE_RETURN_IF_ERROR(work());
  }
  return Record(*stream_);
}

SideStream::Mark SideStream::MarkCurrent() const {
  return stream_.has_value() ? Record(CurrentStream(device_)) : Mark();
}

absl::Status SideStream::RunAfter(const Mark& mark, const std::function<absl::Status()>& work) const {
  if (!stream_.has_value()) return work();
  if (mark != nullptr) mark->block(*stream_);
  c10::StreamGuard guard(*stream_);
  return work();
}

void SideStream::Await(const Mark& mark) const {
  if (mark != nullptr) mark->block(CurrentStream(device_));
}

}  // namespace syncopate::trainer
