#pragma once

// Reasons (see Error in base/status.h) that our programs compare. All others are for people and for clients of the
// wire, and are literals where the error is made.
namespace syncopate::reason {

// Adapters meet another base than the one they were trained on.
inline constexpr char kBaseMismatch[] = "BASE_MISMATCH";

// Why a member left (Membership) and its stream ended.
inline constexpr char kLeft[] = "LEFT";
inline constexpr char kDeclaredDead[] = "DECLARED_DEAD";
inline constexpr char kNewStream[] = "NEW_STREAM";

// Why a part of a weight sync failed; the next attempt depends on it.
inline constexpr char kGroupLost[] = "GROUP_LOST";
inline constexpr char kNotPrepared[] = "NOT_PREPARED";
inline constexpr char kBaseLacking[] = "BASE_LACKING";  // a receiver no longer has the base weights of the version
inline constexpr char kBaseHeld[] = "BASE_HELD";        // a receiver has the base weights that were to be sent to it
inline constexpr char kDeadline[] = "DEADLINE";
inline constexpr char kDigestMismatch[] = "DIGEST_MISMATCH";
inline constexpr char kNonFinite[] = "NON_FINITE";
// The live weights of a receiver are no longer those that were verified when they arrived: the process ends.
inline constexpr char kWeightsDamaged[] = "WEIGHTS_DAMAGED";

// Why a weight sync between these members can never succeed; a retry is useless.
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

// A lease was returned because its reward failed: this counts against the prompt, not against a rollouter.
inline constexpr char kRewardFailed[] = "REWARD_FAILED";
// A lease was returned because its environment failed in every play of a sample: this counts against the prompt, too.
inline constexpr char kEnvironmentFailed[] = "ENVIRONMENT_FAILED";

// A device, a disk or a driver does not answer any more: the process ends with exit code 4.
inline constexpr char kDiskStuck[] = "DISK_STUCK";
inline constexpr char kCopyStuck[] = "COPY_STUCK";
inline constexpr char kAbortStuck[] = "ABORT_STUCK";

// Why a step, a batch or an evaluation ended without its result.
inline constexpr char kDataEnded[] = "DATA_ENDED";
inline constexpr char kNoBatch[] = "NO_BATCH";
inline constexpr char kOvertaken[] = "OVERTAKEN";

// Trainer only: another trainer has taken its place; it was evicted; there is no checkpoint; it is not yet a member.
inline constexpr char kFenced[] = "FENCED";
inline constexpr char kEvicted[] = "EVICTED";
inline constexpr char kNoCheckpoint[] = "NO_CHECKPOINT";
inline constexpr char kNotJoined[] = "NOT_JOINED";

// A message lacks the secret that its sender must have.
inline constexpr char kWrongSecret[] = "WRONG_SECRET";

// Why an answer or a lease is refused.
inline constexpr char kWrongVersion[] = "WRONG_VERSION";
inline constexpr char kLeaseHeld[] = "LEASE_HELD";

// Errors that may end without a restart: by time, by new certificate files, by free space.
inline constexpr char kCertificateExpired[] = "CERTIFICATE_EXPIRED";
inline constexpr char kCertificateNotYetValid[] = "CERTIFICATE_NOT_YET_VALID";
inline constexpr char kIoError[] = "IO_ERROR";
inline constexpr char kNoSpace[] = "NO_SPACE";

// The model directory has no chat template.
inline constexpr char kNoChatTemplate[] = "NO_CHAT_TEMPLATE";

}  // namespace syncopate::reason
