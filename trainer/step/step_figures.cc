#include "trainer/step/step_figures.h"

namespace syncopate::trainer {

void SetMoves(const PolicyMoves& moves, StepFigures* figures) {
  figures->parameters_load_seconds = moves.parameters.load_seconds;
  figures->parameters_offload_seconds = moves.parameters.offload_seconds;
  figures->parameters_moved_bytes = moves.parameters.bytes;
  figures->optimizer_load_seconds = moves.optimizer.load_seconds;
  figures->optimizer_offload_seconds = moves.optimizer.offload_seconds;
  figures->optimizer_moved_bytes = moves.optimizer.bytes;
  figures->reference_load_seconds = moves.reference.load_seconds;
  figures->reference_offload_seconds = moves.reference.offload_seconds;
  figures->reference_moved_bytes = moves.reference.bytes;
  figures->cache_flushes = moves.cache_flushes;
}

void SetMemory(const PolicyMemory& memory, StepFigures* figures) {
  figures->memory_allocated_bytes = memory.allocated_bytes;
  figures->memory_reserved_bytes = memory.reserved_bytes;
  figures->parameters_device_bytes = memory.parameter_bytes;
  figures->optimizer_device_bytes = memory.optimizer_bytes;
  figures->gradients_device_bytes = memory.gradient_bytes;
  figures->reference_device_bytes = memory.reference_bytes;
}

}  // namespace syncopate::trainer
