#pragma once

// The files of a trainer's state, relative to run.dir. A header alone, because restore, daemon and ending name the same
// files.
namespace syncopate::trainerd {

inline constexpr char kStateFolder[] = "state/trainer";
inline constexpr char kLogFolder[] = "state/trainer/log";
inline constexpr char kIdentityFile[] = "state/trainer/identity.json";
inline constexpr char kFlowFile[] = "state/trainer/flow.pb";
inline constexpr char kSummaryFile[] = "summary.json";
inline constexpr char kExportsFolder[] = "exports";

}  // namespace syncopate::trainerd
