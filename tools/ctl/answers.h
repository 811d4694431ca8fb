#pragma once

#include <string>

#include "google/protobuf/message.h"
#include "syncopate/v1/rollout.pb.h"
#include "syncopate/v1/synchronizer.pb.h"
#include "syncopate/v1/trainer.pb.h"

// The daemons' answers as text. Pure.
namespace syncopate::ctl {

// proto3 JSON on one line, with the field names of the .proto and default values written out.
std::string ToJson(const google::protobuf::Message& message);

// One line of detail for `ctl status`.
std::string Summary(const v1::SynchronizerServiceGetStatusResponse& status);
std::string Summary(const v1::TrainerServiceGetStatusResponse& status);
std::string Summary(const v1::RolloutServiceGetStatusResponse& status);

std::string ToTable(const v1::ListMembersResponse& members);
std::string ToTable(const v1::ListVersionsResponse& versions);
std::string ToTable(const v1::GenerateResponse& answer);
// What the trainer waits for, the three numbers of the sizing law, and one row a rollouter.
std::string ToText(const v1::TrainerServiceGetStatusResponse& status);

// How many rollouters and what staleness the run could use.
std::string ToText(const v1::Sizing& sizing);

// The heading and the rows of `ctl syncs`, with fixed widths because rows are printed one by one. A row shows what was
// sent, how long each phase took, the rate of the transfer, and the reason for this transport, or the error.
std::string SyncHeading();
std::string SyncRow(const v1::SyncRecord& record);

std::string StateName(v1::MemberState state);  // "alive", ...

}  // namespace syncopate::ctl
