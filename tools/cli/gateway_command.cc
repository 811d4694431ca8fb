#include <iostream>
#include <memory>

#include "base/log.h"
#include "tools/cli/command.h"
#include "tools/gateway/run_gateway.h"

namespace syncopate::cli {
namespace {

int RunGatewayCommand(const gateway::GatewayOptions& options) {
  // Only warnings are logged; without a file this cannot fail.
  InitLogging({.role = "gateway", .minimum = Severity::kWarning}).IgnoreError();
  const absl::Status served = gateway::RunGateway(options);
  if (served.ok()) return 0;
  std::cerr << served.message() << "\n";
  return absl::IsInvalidArgument(served) ? 2 : 1;
}

}  // namespace

void AddGatewayCommand(CLI::App* app, Command* chosen) {
  auto options = std::make_shared<gateway::GatewayOptions>();
  CLI::App* command =
      app->add_subcommand("gateway", "Serve all rollouters of a run to OpenAI's clients at one address");
  command->add_option("--listen", options->listen, "host:port; port 0: any free one")->capture_default_str();
  command->add_option("--target", options->daemons.target, "host:port of the synchronizer");
  command->add_option("--run", options->daemons.run_dir, "Run directory; without it, the newest under runs/")
      ->type_name(kFolderType);
  command
      ->add_option(
          "--client-token-file", options->client_token_file,
          "File of bearer tokens, as the run's security.token_file: only clients with one of client or admin are "
          "let in; without it everybody on this machine")
      ->type_name(kFileType);
  command->add_flag("--insecure-bind", options->insecure_bind,
                    "Allow an address that is not loopback, unencrypted; needs --client-token-file");
  // Options that are not given are taken from the run directory's configuration.
  command->add_option("--tls-cert", options->security.tls_cert, "PEM file of a viewer's certificate")
      ->type_name(kFileType);
  command->add_option("--tls-key", options->security.tls_key, "PEM file of its private key")->type_name(kFileType);
  command
      ->add_option("--tls-ca", options->security.tls_ca,
                   "PEM file of the authorities that the synchronizer's certificate must come from")
      ->type_name(kFileType);
  command
      ->add_option("--token-file", options->security.token_file,
                   "File of bearer tokens, of which that of viewer is shown to the synchronizer")
      ->type_name(kFileType);
  command->add_option("--trust-domain", options->security.trust_domain,
                      "In certificates' names; syncopate if not given");
  command->callback([=] { *chosen = [=] { return RunGatewayCommand(*options); }; });
}

}  // namespace syncopate::cli
