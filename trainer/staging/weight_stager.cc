#include "trainer/staging/weight_stager.h"

#include "absl/strings/str_cat.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::trainer {

std::string SourceLayoutText(int32_t world, DType dtype) {
  return absl::StrCat("units:", world, dtype == DType::kFloat32 ? ":fp32" : ":bf16");
}

absl::StatusOr<synchronizer::SyncPlan> PlanStaging(const Manifest& wire, const StagedPart& part, DType dtype) {
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout source,
                             synchronizer::BuildLayout(wire, SourceLayoutText(part.world, dtype)));
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout receivers,
                             synchronizer::BuildLayout(wire, part.destination.empty() ? "whole:1" : part.destination));
  return synchronizer::SyncPlan::Create(wire, source, receivers);
}

}  // namespace syncopate::trainer
