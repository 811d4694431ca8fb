#include "base/certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate {
namespace {

constexpr int kMaxCertificates = 64;  // in one PEM text
constexpr int kMaxDepth = 4;          // intermediates between a certificate and an authority
constexpr int kSecurityLevel = 2;     // OpenSSL's: 112 bits, so RSA of 2048 bits or more and no SHA-1

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
void FreeStack(STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); }

using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Stack = std::unique_ptr<STACK_OF(X509), Deleter<FreeStack>>;
using Names = std::unique_ptr<GENERAL_NAMES, Deleter<GENERAL_NAMES_free>>;
using VerifyContext = std::unique_ptr<X509_STORE_CTX, Deleter<X509_STORE_CTX_free>>;

absl::Status BadPem(absl::string_view reason, const std::string& message) {
  ERR_clear_error();  // OpenSSL has one error queue per thread, and gRPC reads it too
  return Error(absl::StatusCode::kInvalidArgument, reason, message);
}

Bio Reader(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// Without this callback OpenSSL would ask for a password on the terminal, and the daemon would hang.
int RefusePassword(char*, int, int, void*) { return -1; }

// All certificates in a text; an error if there is none.
absl::StatusOr<std::vector<Certificate>> ParseAll(const std::string& pem) {
  Bio bio = Reader(pem);
  std::vector<Certificate> all;
  while (Certificate next{PEM_read_bio_X509(bio.get(), nullptr, &RefusePassword, nullptr)}) {
    if (all.size() == kMaxCertificates) return BadPem("BAD_CERTIFICATE", "more than 64 certificates in one file");
    all.push_back(std::move(next));
  }
  ERR_clear_error();  // the end of the text is an error to OpenSSL
  if (all.empty()) return BadPem("BAD_CERTIFICATE", "no certificate in PEM form");
  return all;
}

std::string GetSubject(X509* certificate) {
  Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(bytes));
}

absl::Time GetTime(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(::timegm(&parts));
}

std::vector<std::string> MakeUris(X509* certificate) {
  std::vector<std::string> uris;
  const Names names(static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

std::string Date(const ASN1_TIME* time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", GetTime(time), absl::UTCTimeZone());
}

absl::Status Explain(int error, X509* leaf, X509* culprit) {
  auto refused = [leaf](absl::string_view reason, const std::string& why) {
    return Error(absl::StatusCode::kUnauthenticated, reason,
                 absl::StrCat("the certificate of ", GetSubject(leaf), " ", why));
  };
  // Names the certificate that has expired: if it is an authority, renewing the leaf would not help.
  X509* dated = culprit == nullptr ? leaf : culprit;
  const std::string whose = dated == leaf ? "" : absl::StrCat("comes from ", GetSubject(dated), ", which ");
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return refused(reason::kCertificateExpired, absl::StrCat(whose, "expired at ", Date(X509_get0_notAfter(dated))));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return refused(reason::kCertificateNotYetValid,
                     absl::StrCat(whose, "is not valid before ", Date(X509_get0_notBefore(dated))));
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return refused("UNKNOWN_AUTHORITY", "does not come from an authority in tls_ca");
    default:
      return refused("BAD_CERTIFICATE", absl::StrCat("is refused: ", X509_verify_cert_error_string(error)));
  }
}

}  // namespace

absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Certificate> all, ParseAll(pem));
  X509* first = all.front().get();
  return CertificateFacts{GetSubject(first), MakeUris(first), GetTime(X509_get0_notBefore(first)),
                          GetTime(X509_get0_notAfter(first))};
}

absl::Status CheckKey(const std::string& certificate_pem, const std::string& key_pem) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Certificate> all, ParseAll(certificate_pem));
  Bio bio = Reader(key_pem);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &RefusePassword, nullptr));
  if (key == nullptr) return BadPem("BAD_KEY", "no private key in PEM form without a password");
  if (X509_check_private_key(all.front().get(), key.get()) == 1) return absl::OkStatus();
  return BadPem("BAD_KEY", "the private key is not that of the certificate");
}

struct TrustAnchors::Store {
  std::unique_ptr<X509_STORE, Deleter<X509_STORE_free>> store{X509_STORE_new()};
};

TrustAnchors::TrustAnchors(std::unique_ptr<Store> store) : store_(std::move(store)) {}
TrustAnchors::~TrustAnchors() = default;

absl::StatusOr<std::shared_ptr<const TrustAnchors>> TrustAnchors::Parse(const std::string& pem) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Certificate> all, ParseAll(pem));
  auto store = std::make_unique<Store>();
  for (const Certificate& one : all) X509_STORE_add_cert(store->store.get(), one.get());
  return std::shared_ptr<const TrustAnchors>(new TrustAnchors(std::move(store)));
}

absl::Status TrustAnchors::Verify(const std::string& leaf_pem, const std::string& chain_pem, Use use,
                                  absl::Time now) const {
  absl::StatusOr<std::vector<Certificate>> leaf = ParseAll(leaf_pem);
  if (!leaf.ok()) return Error(absl::StatusCode::kUnauthenticated, "BAD_CERTIFICATE", leaf.status().message());
  absl::StatusOr<std::vector<Certificate>> chain = ParseAll(chain_pem);  // may be empty: an error then counts as none
  const Stack untrusted(sk_X509_new_null());
  // Files have the intermediates after the leaf, peers send them separately: both places are read.
  for (size_t i = 1; i < leaf->size(); ++i) sk_X509_push(untrusted.get(), (*leaf)[i].release());
  for (size_t i = 0; chain.ok() && i < chain->size(); ++i) sk_X509_push(untrusted.get(), (*chain)[i].release());

  X509* certificate = leaf->front().get();
  const VerifyContext context(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(context.get(), store_->store.get(), certificate, untrusted.get()) != 1) {
    ERR_clear_error();
    return Error(absl::StatusCode::kResourceExhausted, "BAD_CERTIFICATE", "out of memory for a certificate");
  }
  X509_VERIFY_PARAM* rules = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_purpose(rules, use == Use::kClient ? X509_PURPOSE_SSL_CLIENT : X509_PURPOSE_SSL_SERVER);
  X509_VERIFY_PARAM_set_depth(rules, kMaxDepth);
  X509_VERIFY_PARAM_set_auth_level(rules, kSecurityLevel);
  // The caller's time, so that tests can let certificates expire.
  X509_VERIFY_PARAM_set_time(rules, absl::ToTimeT(now));
  const bool good = X509_verify_cert(context.get()) == 1;
  ERR_clear_error();
  if (good) return absl::OkStatus();
  return Explain(X509_STORE_CTX_get_error(context.get()), certificate, X509_STORE_CTX_get_current_cert(context.get()));
}

}  // namespace syncopate
