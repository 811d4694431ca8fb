#include "trainer/loop/run_observer.h"

namespace syncopate::trainer {

const char* LoopPhaseName(LoopPhase phase) {
  switch (phase) {
    case LoopPhase::kIdle:
      return "idle";
    case LoopPhase::kStep:
      return "step";
    case LoopPhase::kStage:
      return "stage";
    case LoopPhase::kEvaluate:
      return "evaluate";
    case LoopPhase::kCheckpoint:
      return "checkpoint";
    case LoopPhase::kTurn:
      return "turn";
    case LoopPhase::kPaused:
      return "paused";
    case LoopPhase::kOther:
      break;
  }
  return "other";
}

}  // namespace syncopate::trainer
