#include "tcp_kit/handshake.h"

#include <sodium.h>

#include <cstddef>
#include <cstring>

namespace engine::tcp {
namespace {

static_assert(sizeof(Mac) == crypto_auth_BYTES && sizeof(Mac) == crypto_auth_KEYBYTES);
static_assert(sizeof(Mac) == crypto_generichash_BYTES);

Mac MacOf(const void* data, size_t size, const Mac& key) noexcept {
  Mac mac;
  crypto_auth(mac.data(), static_cast<const unsigned char*>(data), size, key.data());
  return mac;
}

std::string Hex(const Mac& bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

}  // namespace

// Nobody makes a Key without a token of its own, so sodium_init comes before all other calls.
Result<std::string> Key::NewToken() {
  if (sodium_init() < 0) {
    return Status::Error(StatusCode::kInternal, "libsodium cannot be initialized");
  }
  Mac token;
  randombytes_buf(token.data(), token.size());
  return Hex(token);
}

// key = BLAKE2b of the token under the key BLAKE2b of the file: without the file the token says
// nothing of it, and files of any length will do.
Result<Key> Key::Of(const std::string& token, std::string_view file) {
  Mac salt, file_hash;
  size_t size = 0;
  sodium_hex2bin(salt.data(), salt.size(), token.data(), token.size(), nullptr, &size, nullptr);
  if (size != salt.size()) {
    return Status::Error(StatusCode::kRendezvous, "'%s' is no token", token.c_str());
  }
  Key key;
  crypto_generichash(file_hash.data(), file_hash.size(),
                     reinterpret_cast<const unsigned char*>(file.data()), file.size(), nullptr, 0);
  crypto_generichash(key.bytes_.data(), key.bytes_.size(), salt.data(), salt.size(),
                     file_hash.data(), file_hash.size());
  return key;
}

Hello Key::MakeHello(int rank, int lane) const noexcept {
  Hello hello{.rank = rank, .lane = lane};
  randombytes_buf(hello.nonce.data(), hello.nonce.size());
  hello.proof = MacOf(&hello, offsetof(Hello, proof), bytes_);
  return hello;
}

bool Key::Proves(const Hello& hello) const noexcept {
  return hello.magic == Hello().magic &&
         Equal(hello.proof, MacOf(&hello, offsetof(Hello, proof), bytes_));
}

// The letter is under the MAC, and the nonce of the hello with it: nobody on the way can turn one
// answer into the other, or give an old one.
Mac Key::Answer(const Hello& hello, bool taken) const noexcept {
  unsigned char text[sizeof(hello) + 1];
  std::memcpy(text, &hello, sizeof(hello));
  text[sizeof(hello)] = taken ? 'y' : 'n';
  return MacOf(text, sizeof(text), bytes_);
}

std::string Key::Fingerprint() const {
  return Hex(MacOf(nullptr, 0, bytes_));
}

bool Equal(const Mac& a, const Mac& b) noexcept {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace engine::tcp
