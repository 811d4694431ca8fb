#include "trainer/actor/reference_policy.h"

#include <ATen/core/grad_mode.h>

#include <cstring>

namespace syncopate::trainer {

void ReferencePolicy::Renew(const Actor& actor) {
  at::NoGradGuard no_grad;
  SYNCOPATE_CHECK(base_of_ == nullptr);
  kept_ = actor.parameters().to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  Write();
}

void ReferencePolicy::Restore(const Actor& actor, const PolicySource& source) {
  at::NoGradGuard no_grad;
  SYNCOPATE_CHECK(base_of_ == nullptr);
  const Manifest& manifest = actor.manifest();
  kept_ = at::zeros({actor.shards().local_elements()}, at::kFloat);
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t begin = manifest.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
    for (const FlatShards::Piece& piece : actor.shards().MakePieces(begin, manifest.tensors()[i].NumElements())) {
      char* place = reinterpret_cast<char*>(kept_.data_ptr<float>() + piece.local_begin);
      source.Read(PolicyPart::kReference, i, piece.whole_begin - begin, piece.count,
                  [&place](absl::string_view numbers) {
                    std::memcpy(place, numbers.data(), numbers.size());
                    place += numbers.size();
                  });
    }
  }
  Write();
}

void ReferencePolicy::Write() {
  units_ = nullptr;  // with several ranks they may hold gathered weights of before
  at::Tensor weights = weights_of_;
  weights.copy_(kept_);
  if (memory_ != nullptr) memory_->MarkWritten();
  make_units_();
}

void ReferencePolicy::AddTo(PolicySnapshot* snapshot) const {
  if (!kept_.defined()) return;
  const auto kept = std::make_shared<at::Tensor>(kept_);
  snapshot->arenas[static_cast<size_t>(PolicyPart::kReference)] =
      std::shared_ptr<const char>(kept, static_cast<const char*>(kept->data_ptr()));
}

}  // namespace syncopate::trainer
