#pragma once

// Reasons (see Error in base/status.h) that programs compare. The others are for people and for whoever reads the wire,
// and stand where they are given.
namespace syncopate::reason {

// Why a member went (Membership) and its stream ended.
inline constexpr char kLeft[] = "LEFT";
inline constexpr char kDeclaredDead[] = "DECLARED_DEAD";
inline constexpr char kNewStream[] = "NEW_STREAM";

// Why a part of a weight sync failed, of which the next attempt depends.
inline constexpr char kGroupLost[] = "GROUP_LOST";
inline constexpr char kNotPrepared[] = "NOT_PREPARED";
inline constexpr char kDeadline[] = "DEADLINE";
inline constexpr char kDigestMismatch[] = "DIGEST_MISMATCH";
inline constexpr char kNonFinite[] = "NON_FINITE";

// What no repetition mends, as members are what they are.
inline constexpr char kModelMismatch[] = "MODEL_MISMATCH";
inline constexpr char kLayoutMismatch[] = "LAYOUT_MISMATCH";
inline constexpr char kDtypeMismatch[] = "DTYPE_MISMATCH";
inline constexpr char kPlanMismatch[] = "PLAN_MISMATCH";
inline constexpr char kPlanIncomplete[] = "PLAN_INCOMPLETE";
inline constexpr char kNcclMismatch[] = "NCCL_MISMATCH";
inline constexpr char kBadLayout[] = "BAD_LAYOUT";
inline constexpr char kTransportUnknown[] = "TRANSPORT_UNKNOWN";
inline constexpr char kNoCommonTransport[] = "NO_COMMON_TRANSPORT";
inline constexpr char kNotASource[] = "NOT_A_SOURCE";
inline constexpr char kNotAReceiver[] = "NOT_A_RECEIVER";

// A lease handed back because its reward failed: the fault of its prompt, and of no rollouter.
inline constexpr char kRewardFailed[] = "REWARD_FAILED";

// A device, a disk or a driver that does not come back: the process ends, exit code 4.
inline constexpr char kDiskStuck[] = "DISK_STUCK";
inline constexpr char kCopyStuck[] = "COPY_STUCK";
inline constexpr char kAbortStuck[] = "ABORT_STUCK";

// What a step, a batch or an evaluation ended with, if not with itself.
inline constexpr char kDataEnded[] = "DATA_ENDED";
inline constexpr char kNoBatch[] = "NO_BATCH";
inline constexpr char kOvertaken[] = "OVERTAKEN";

// Of a trainer: another one has taken its place, or it was put out; there is nothing to go on from; it is not yet a member.
inline constexpr char kFenced[] = "FENCED";
inline constexpr char kEvicted[] = "EVICTED";
inline constexpr char kNoCheckpoint[] = "NO_CHECKPOINT";
inline constexpr char kNotJoined[] = "NOT_JOINED";

// A message whose sender does not show the secret that it must have.
inline constexpr char kWrongSecret[] = "WRONG_SECRET";

// Of an answer or a lease.
inline constexpr char kWrongVersion[] = "WRONG_VERSION";
inline constexpr char kLeaseHeld[] = "LEASE_HELD";

// What passes by itself, or by new files.
inline constexpr char kCertificateExpired[] = "CERTIFICATE_EXPIRED";
inline constexpr char kCertificateNotYetValid[] = "CERTIFICATE_NOT_YET_VALID";
inline constexpr char kIoError[] = "IO_ERROR";
inline constexpr char kNoSpace[] = "NO_SPACE";

// A model directory without a chat template.
inline constexpr char kNoChatTemplate[] = "NO_CHAT_TEMPLATE";

}  // namespace syncopate::reason
